"""Command lines of benchmarks: the script's docstring as its help page, modes, and bounds of numbers."""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the page's line breaks, and shows defaults that are values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default, text = action.default, action.help
        if text is None:
            return None
        if not (default is None or default is False or default in ("", argparse.SUPPRESS, {})):
            shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
            text = f"{text} (default: {shown})"
        return text.replace("%", "%%")


def command_line(page: str | None) -> argparse.ArgumentParser:
    """A parser with the option `--smoke` whose help shows `page`, the script's docstring. See `parsed`."""
    parser = argparse.ArgumentParser(description=page, formatter_class=_Help, allow_abbrev=False)
    parser.add_argument(
        "--smoke", action="store_true", help="run everything once, as small as possible, within seconds: no figures"
    )
    return parser


def parsed(
    parser: argparse.ArgumentParser, words: Sequence[str] | None, **modes: Mapping[str, Any]
) -> argparse.Namespace:
    """The options in `words`, or of the process's command line if None.

    `modes` has an item for each flag that replaces the defaults of other options: `smoke={"rounds": 1}` makes 1 the
    default of `--rounds` if `--smoke` is given. Raises `ValueError` if a mode names an option that does not exist.
    """
    args = parser.parse_args(words)
    for mode, defaults in modes.items():
        if unknown := defaults.keys() - vars(args).keys():
            raise ValueError(f"mode {mode}: no such options: {', '.join(sorted(unknown))}")
        if getattr(args, mode):
            parser.set_defaults(**defaults)
            return parser.parse_args(words)
    return args


def at_least(least: int) -> Callable[[str], int]:
    """The `type` of an option that takes an integer of `least` or more."""

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
    """The `type` of an option that takes integers of 1 or more, separated by commas."""
    return [at_least(1)(part) for part in text.split(",")]


def above_zero(text: str) -> float:
    """The `type` of an option that takes a finite number above 0."""
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def share(text: str) -> float:
    """The `type` of an option that takes a number above 0, at most 1."""
    value = above_zero(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"must be 1 or less, not {text}")
    return value


def not_negative(text: str) -> float:
    """The `type` of an option that takes a finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of 0 or more, not {text}")
    return value
