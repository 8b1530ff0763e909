"""The command lines of the benchmarks: the page at the script's head, each option with its unit and default, and
refusals of numbers that would leave nothing to measure."""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any


class _Help(argparse.RawDescriptionHelpFormatter):
    """Leaves the page as it is, and names the defaults that are values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default, text = action.default, action.help
        if text is None:
            return None
        if not (default is None or default is False or default in ("", argparse.SUPPRESS, {})):
            shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
            text = f"{text} (default: {shown})"
        return text.replace("%", "%%")


def command_line(page: str | None) -> argparse.ArgumentParser:
    """A parser that shows `page`, a script's docstring."""
    return argparse.ArgumentParser(description=page, formatter_class=_Help)


def parsed(parser: argparse.ArgumentParser, words: Sequence[str] | None, **quick: Any) -> argparse.Namespace:
    """The options in `words`, the script's own without. With --quick `quick` is what those are that nobody gave."""
    args = parser.parse_args(words)
    if args.quick:
        parser.set_defaults(**quick)
        args = parser.parse_args(words)
    return args


def at_least(least: int) -> Callable[[str], int]:
    """The `type` of an option that is a whole number of `least` or more."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, not {value}")
        return value

    return number


def levels(text: str) -> list[int]:
    """The `type` of an option that is whole numbers of 1 or more, separated by commas."""
    return [at_least(1)(part) for part in text.split(",")]


def above_zero(text: str) -> float:
    """The `type` of an option that is a finite number above 0."""
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def not_negative(text: str) -> float:
    """The `type` of an option that is a finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of 0 or more, not {text}")
    return value
