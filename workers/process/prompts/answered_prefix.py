"""Digests of a prompt and its answer: what a sequence leaves in the cache, as the gateway recognizes it."""

from protocol.commands import Submit
from protocol.events import Delta, HeldPrefix
from protocol.prefix_digests import PrefixDigests, answer_begins
from protocol.request import EmbeddedInput, InfillInput, TokensInput
from workers.engine.kv_slots import RetentionChange


class AnsweredPrefix:
    """The digests of a sequence. The answer counts up to the first reasoning or call, which clients may send back in
    another form than they came; and not that of a sequence that was resumed, of whose answer the text is unknown."""

    __slots__ = ("_begins", "_digests", "_grows", "_of_tokens")

    def __init__(self, digests: PrefixDigests, submit: Submit) -> None:
        """`digests` are those of the prompt, and are added to."""
        self._digests = digests
        self._of_tokens = isinstance(submit.input, TokensInput | EmbeddedInput)
        self._grows = not submit.resume and not isinstance(submit.input, InfillInput)
        self._begins = answer_begins(submit.input)
        """The separator that is still to be added before the text."""

    def add(self, delta: Delta) -> None:
        """Add what was generated."""
        if not self._grows:
            return
        if delta.segments:
            self._grows = False
        elif self._of_tokens:
            self._digests.add_tokens(delta.tokens)
        elif delta.text:
            self._digests.add_text(self._begins + delta.text)
            self._begins = ""

    def held(self, change: RetentionChange) -> HeldPrefix | None:
        """Return the report of the rows that a slot retains of this sequence. None if it retains none of it.

        Of a sequence that was ended before its prompt was complete, or whose last tokens have no rows yet, it is the
        share of the bytes that corresponds to its rows.
        """
        if not change.rows:
            return None
        size = self._digests.size * change.rows // max(change.rows, change.length - 1)
        return HeldPrefix(change.slot, change.rows, self._digests.digests(size))
