"""Result of trying one device of one backend with a small matrix product."""

import re
from dataclasses import dataclass

_NATIVE_PLACE = re.compile(r"^(Error creating driver: )?[\w./-]+\.[ch]\w*:\d+: ([A-Z_]+; )?")
"""Source position of an error in a native library, which does not help the reader of a report."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One line of `baton doctor`. `detail` describes the device, or why it does not work."""

    backend: str
    device: str
    works: bool
    detail: str
    advice: str = ""
    """Advice for the user; empty if there is none."""


def short(error: BaseException, limit: int = 160) -> str:
    """Return the first informative line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = _NATIVE_PLACE.sub("", lines[0]) if lines else type(error).__name__
    return line[:limit].rstrip(" ;:")
