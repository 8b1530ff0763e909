"""Tokens in, text out: the incremental detokenizer of one sequence."""

import codecs
from collections.abc import Sequence

from workers.text.stops import StopScanner
from workers.text.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4


class IncrementalDetokenizer:
    """Turns generated tokens into text as they come.

    The pieces concatenate to what decoding all tokens at once would give, cut before the first stop string. A character
    whose bytes are split over tokens is held back until it is whole, and so is what may become a stop string. U+FFFD
    appears only where the bytes can no longer become UTF-8. The cost of a token does not depend on those before it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        """`prompt` is the text that the answer continues: its last bytes may be half a character, and after it a
        leading space is kept. For an answer that begins a text of its own (a chat turn) it is empty."""
        self._scanner = StopScanner(stops)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        tail = _last_bytes(tokenizer, prompt)
        self._decode(tail)
        self._begun = bool(tail)
        # Looked up once: `push` runs for every token of every stream.
        self._piece = tokenizer.piece
        self._scan = self._scanner.push

    @property
    def stopped(self) -> bool:
        """A stop string is complete; nothing more comes out."""
        return self._scanner.stopped

    def push(self, token: int) -> str:
        """The text that is certain now; often the token's own, sometimes nothing, sometimes several tokens'."""
        piece = self._piece(token)
        if not piece:
            return ""
        if not self._begun:
            self._begun = True
            piece = self._piece(token, first=True)
        return self._scan(self._decode(piece))

    def finish(self) -> str:
        """What is left when no token follows: half a character becomes U+FFFD, half a stop string becomes text."""
        text = self._scan(self._decode(b"", True))
        return text if self.stopped else text + self._scanner.finish()


def _last_bytes(tokenizer: Tokenizer, prompt: Sequence[int]) -> bytes:
    """The last bytes of the prompt, enough to hold any half character; no bytes when the prompt has no text."""
    tail = b""
    for token in reversed(prompt):
        tail = tokenizer.piece(token) + tail
        if len(tail) >= _LONGEST_CHARACTER:
            break
    return tail[-_LONGEST_CHARACTER:]
