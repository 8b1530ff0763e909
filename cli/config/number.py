"""Numbers on the command line."""

import math
from collections.abc import Callable
from typing import Any

from cli.config import allowed_values
from cli.config.errors import InvalidOption


def number_of(
    flag: str, kind: type[int] | type[float], low: float = -math.inf, high: float = math.inf
) -> Callable[[Any], float]:
    """Return the parser of an option whose values are numbers. It raises `InvalidOption`, which names the flag."""
    allowed = allowed_values.number(kind, low, high) if low > -math.inf else allowed_values.number(kind)

    def parse(value: Any) -> float:
        try:
            parsed = kind(value)
        except (ValueError, OverflowError):
            parsed = None
        if parsed is None or not low <= parsed <= high:
            raise InvalidOption(f"{flag}: must be {allowed}, not {allowed_values.shown(value)}")
        return parsed

    return parse
