"""What one device of one backend answered when it was really asked to multiply two matrices.

Run with the argument `iree`, the module prints the probes as JSON. It is a process of its own because a broken driver
may abort.
"""

import importlib
import re
import sys
from dataclasses import dataclass

import msgspec

_NATIVE_PLACE = re.compile(r"^(Error creating driver: )?[\w./-]+\.[ch]\w*:\d+: ([A-Z_]+; )?")
"""Where in a native library an error was raised: for its developers, not for a person who reads a report."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One line of `baton doctor`. `detail` says what it is, or why it does not work."""

    backend: str
    device: str
    works: bool
    detail: str
    advice: str = ""
    """What a person can do about it; empty when there is nothing to do."""


def short(error: BaseException, limit: int = 160) -> str:
    """The first telling line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = _NATIVE_PLACE.sub("", lines[0]) if lines else type(error).__name__
    return line[:limit].rstrip(" ;:")


def main(backend: str) -> None:
    """Print the probes of one backend as a JSON list."""
    module = importlib.import_module(f"workers.{backend}.probe")
    sys.stdout.buffer.write(msgspec.json.encode(module.probe()))


if __name__ == "__main__":
    main(sys.argv[1])
