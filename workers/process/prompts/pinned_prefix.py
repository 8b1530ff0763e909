"""Finds the tokens of a prompt that a client wants to be kept."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from protocol.request import ChatInput, Message, Pin
from workers.engine.prefix_match import PinnedPrefix, common_prefix
from workers.process.prompts.refusal import PromptRefused

Render = Callable[[ChatInput], tuple[str, str]]
"""Returns the text of a prompt and the mark of control tokens in it. Raises `PromptRefused`."""
KNOWN = 64
"""Prefixes whose number of tokens is remembered."""


class PinnedPrefixes:
    """Counts the tokens of pinned prefixes of chats, for one model. Used by one thread at a time."""

    def __init__(self, render: Render, encode: Callable[[str, str], Sequence[int]]) -> None:
        """`encode` returns the tokens of what `render` returns, and raises `PromptRefused` as well."""
        self._render = render
        self._encode = encode
        self._known: OrderedDict[bytes, int] = OrderedDict()

    def of(self, source: ChatInput, tokens: Sequence[int], render: Render | None = None) -> tuple[PinnedPrefix, ...]:
        """Return the prefixes of a prompt of these tokens that are to be kept. `render` is for this chat alone."""
        if not source.pins:
            return ()
        render = render or self._render
        text, mark = render(source)
        found = (
            PinnedPrefix(self._rows(source, pin, text, mark, tokens, render), float(pin.seconds)) for pin in source.pins
        )
        return tuple(pin for pin in found if pin.rows)

    def boundaries(self, source: ChatInput, tokens: Sequence[int], messages: Sequence[int]) -> list[int]:
        """Return how many tokens of a prompt come before the content of each of some messages, by their index; 0 if
        that is not known."""
        text, mark = self._render(source)
        return [self._rows(source, Pin(index, 1), text, mark, tokens, self._render) for index in messages]

    def _rows(self, source: ChatInput, pin: Pin, text: str, mark: str, tokens: Sequence[int], render: Render) -> int:
        """Return the tokens that the prompt has in common with that of a chat which differs behind the prefix. The
        template decides what this is: it may put later messages first. 0 if it takes no other text."""
        if pin.messages >= len(source.messages):
            return len(tokens)
        kept, rest = source.messages[: pin.messages], source.messages[pin.messages :]
        changed = (_changed(rest[0], pin.characters), *(_changed(message, 0) for message in rest[1:]))
        try:
            other, _ = render(replace(source, messages=(*kept, *changed)))
        except PromptRefused:
            return 0  # the template takes no other text there: what it does with it is not known
        return self._tokens(text[: _common(text, other)], mark, tokens)

    def _tokens(self, text: str, mark: str, tokens: Sequence[int]) -> int:
        key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        if key not in self._known:
            encoded = self._encode(text, mark)
            self._known[key] = common_prefix(encoded, tokens, len(encoded))
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return min(self._known[key], len(tokens))


def _changed(message: Message, characters: int) -> Message:
    """Return a message with other text behind so many characters."""
    kept, rest = message.content[:characters], message.content[characters:]
    return replace(message, content=kept + ("b" if rest.startswith("a") else "a"))


def _common(one: str, other: str) -> int:
    """Return the number of first characters that are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
