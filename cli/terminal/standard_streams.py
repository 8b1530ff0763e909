"""The standard streams of a program that may have been started without them."""

import os
import sys


def open_standard_streams() -> None:
    """Open standard input, output and error on /dev/null if they are closed.

    Otherwise the next files and sockets would get their numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115  stays open
