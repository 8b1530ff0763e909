"""Control tokens in the text of messages: marked before a chat template renders it, so that they stay ordinary text.

A mark is put into each control token in a message, which a template copies, trims or encodes like any other character.
A control token without a mark in the rendered prompt is the template's own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

MARK = "\ufdd0"
"""A noncharacter, which Unicode keeps free for use inside of a program. Digits follow it if a text contains it."""
DIGITS = "\ufdd3\ufdd4"
"""Binary digits of a mark. A text with `n` marks contains at most `n` numbers, so that log2(n) + 1 digits are enough. A
text of marks makes neither the prompt long nor the search for an unused mark slow."""
_HEAD = 4
"""Characters of a token that are looked for first, which is faster than a step of the trie at each place."""
_Trie = dict[str, Any]
_END = ""
"""The key of a trie's node at which a token ends."""


class ControlTokens:
    """Finds the control tokens of a vocabulary in text, the longest one at each place, as the tokenizer does."""

    def __init__(self, contents: Iterable[str]) -> None:
        tokens = [content for content in contents if len(content) > 1]  # a mark needs two characters
        self._reach = max(map(len, tokens), default=2) - 1
        self._forward = _trie(tokens)
        self._backward = _trie(token[::-1] for token in tokens)
        length = min([_HEAD, *map(len, tokens)])
        heads = sorted({token[:length] for token in tokens})
        # Looks ahead, because a token may begin within the head of another place.
        self._heads = re.compile(f"(?={'|'.join(map(re.escape, heads))})" if heads else "(?!)")

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return the starts and ends of the control tokens in a text, in order."""
        found, at = [], 0
        for start in (match.start() for match in self._heads.finditer(text)):
            if start >= at and (end := _longest(self._forward, text, start)):
                found.append((start, end))
                at = end
        return found

    def mark(self, values: Any, *, always: bool = False) -> tuple[Any, str]:
        """Mark the control tokens in all strings of JSON values, and what could become one beside a template's text.

        Returns the values and the mark, which is in none of their strings before; it is empty if nothing was marked,
        unless a mark is `always` wanted.
        """
        mark = _unused_mark(list(_strings(values)))
        marked = self._marked(values, mark)
        return (values, "") if marked == values and not always else (marked, mark)

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._marked_text(value, mark)
        if isinstance(value, list):
            return [self._marked(each, mark) for each in value]
        if isinstance(value, dict):
            return {self._marked(key, mark): self._marked(each, mark) for key, each in value.items()}
        return value

    def _marked_text(self, text: str, mark: str) -> str:
        whole = text.strip()
        if not whole:
            return text
        first = mark if self._may_end_one(whole) else ""
        last = mark if self._may_begin_one(whole) else ""
        while found := self.find(whole):  # one token may contain another
            whole = insert(whole, [start + 1 for start, _ in found], mark)
        # Inside of the white space around it, which templates strip.
        begin = len(text) - len(text.lstrip())
        return f"{text[:begin]}{first}{whole}{last}{text[len(text.rstrip()) :]}"

    def _may_begin_one(self, text: str) -> bool:
        """The end of the text is the beginning of a token."""
        return _has_beginning(self._forward, text[-self._reach :])

    def _may_end_one(self, text: str) -> bool:
        """The beginning of the text is the end of a token."""
        return _has_beginning(self._backward, text[: self._reach][::-1])


def insert(text: str, places: Sequence[int], part: str) -> str:
    """Insert a part at each of these places, in order, of a text."""
    ends = [*places, len(text)]
    return part.join(text[start:end] for start, end in zip([0, *places], ends, strict=True))


def _unused_mark(texts: Sequence[str]) -> str:
    """Return the shortest mark that is in none of the texts. It contains `MARK` once, at its start, so that no text
    beside it completes another one."""
    count = sum(text.count(MARK) for text in texts)
    if not count:
        return MARK
    length = count.bit_length()
    pattern = re.compile(f"{MARK}[{DIGITS}]{{{length}}}")
    used = {found for text in texts for found in pattern.findall(text)}
    numbers = (MARK + "".join(DIGITS[number >> place & 1] for place in range(length)) for number in range(count + 1))
    return next(mark for mark in numbers if mark not in used)


def _trie(tokens: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[_END] = True
    return root


def _longest(trie: _Trie, text: str, start: int) -> int:
    """Return the end of the longest token that starts at `start`; 0 if there is none."""
    node, end = trie, 0
    for at in range(start, len(text)):
        if text[at] not in node:
            break
        node = node[text[at]]
        if _END in node:
            end = at + 1
    return end


def _has_beginning(trie: _Trie, text: str) -> bool:
    """The end of the text is the beginning of a token, and not all of it."""
    return any(character in trie and _reaches_end(trie, text[at:]) for at, character in enumerate(text))


def _reaches_end(trie: _Trie, text: str) -> bool:
    """The text is the beginning of a token, and not all of it."""
    node = trie
    for character in text:
        if character not in node:
            return False
        node = node[character]
    return any(key != _END for key in node)


def _strings(value: Any) -> Iterator[str]:
    """Iterate over the strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _strings(key)
            yield from _strings(each)
