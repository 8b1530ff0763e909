"""Reports what keeps an object alive."""

import gc
from types import FrameType

DEPTH = 4
MOST = 5
"""Referrers that are listed of each object."""


def referrers(kept: object) -> str:
    """The object, with its referrers below it and theirs below them, one a line. Those of the caller are among them."""
    lines: list[str] = []
    _add(lines, kept, 0, {id(kept)})
    return "\n".join(lines)


def _add(lines: list[str], kept: object, depth: int, seen: set[int]) -> None:
    lines.append("    " * depth + f"{type(kept).__qualname__}: {_text(kept)}")
    if depth == DEPTH:
        return
    found = [each for each in gc.get_referrers(kept) if id(each) not in seen and not _own(each)]
    del found[MOST:]
    seen.update(map(id, found))
    seen.add(id(found))  # a referrer, too
    while found:
        _add(lines, found.pop(0), depth + 1, seen)


def _own(referrer: object) -> bool:
    """It is a frame of this module."""
    return isinstance(referrer, FrameType) and referrer.f_code.co_filename == __file__


def _text(kept: object) -> str:
    try:
        return (f"keys {list(kept)}" if isinstance(kept, dict) else repr(kept))[:200]
    except Exception as error:  # noqa: BLE001  a failed test has to report the rest
        return repr(error)
