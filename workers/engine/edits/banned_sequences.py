"""Token sequences that an answer may not contain: the token that would complete one is banned at that position."""

from collections.abc import Callable, Collection, Sequence


class BannedSequences:
    """The tokens that may not come next. Only tokens of the answer count, as in vLLM: a sequence that began in the
    prompt may be completed.

    A step looks only at the sequences in which the last token is followed by another one.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """`sequences` are not empty."""
        self._always = frozenset(sequence[0] for sequence in sequences if len(sequence) == 1)
        self._after: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        """By the last token but one of a sequence: all tokens but the last, and the last."""
        for sequence in sequences:
            if len(sequence) > 1:
                begin = tuple(sequence[:-1])
                self._after.setdefault(begin[-1], []).append((begin, sequence[-1]))
        self._longest = max(map(len, sequences), default=1) - 1
        self._last: list[int] = []
        """As many tokens of the answer as a sequence can begin with."""

    def accept(self, token: int) -> None:
        """Append a token to the answer."""
        self._last.append(token)
        if len(self._last) > self._longest:
            del self._last[0]

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that returns to the present state."""
        last = list(self._last)

        def restore() -> None:
            self._last = last

        return restore

    def banned(self) -> Collection[int]:
        """Return the tokens that may not come next."""
        if not self._last or not (after := self._after.get(self._last[-1])):
            return self._always
        ends = {last for begin, last in after if tuple(self._last[-len(begin) :]) == begin}
        return self._always | ends
