"""Digests of a prompt in the gateway, made when they are needed."""

from protocol.commands import Submit
from protocol.prefix_digests import BOUNDARIES, PrefixDigests


class PromptPrefix:
    """The digests of one prompt, which its sequences share. It does not keep the prompt."""

    __slots__ = ("_digests", "_size")

    def __init__(self) -> None:
        self._digests: tuple[int, ...] | None = None
        self._size = 0

    def digests(self, submit: Submit) -> tuple[int, ...]:
        """Return the digests of the prompt, that of `submit`. The first call takes a millisecond or two for a megabyte;
        the other ones take no time."""
        if self._digests is None:
            made = PrefixDigests.of(submit.input, submit.tenant)
            self._digests, self._size = made.digests(), made.size
        return self._digests

    def share(self, matched: int) -> float:
        """Return the share of the prompt that so many of its first digests are of. After `digests`."""
        return BOUNDARIES[matched - 1] / self._size if matched else 0.0
