"""What a server's log says of the faults that it met. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from gateway.streams import Cause

HARMLESS = frozenset({Cause.LEFT, Cause.MOVED})
"""Why a sequence lost its worker that was no failure. All else was."""


def failures(lines: Iterable[str]) -> dict[str, int]:
    """By the id of the request, how many failures it was there at: the most of any of its sequences."""
    found: Counter[tuple[str, int]] = Counter()
    for line in _events(lines, "stream_lost"):
        if line["cause"] not in HARMLESS:
            found[line["request"], line["choice"]] += 1
    most: dict[str, int] = {}
    for (request, _), count in found.items():
        most[request] = max(count, most.get(request, 0))
    return most


def reasons(lines: Iterable[str]) -> Counter[str]:
    """Why workers were started again: each reason without its numbers."""
    return Counter(re.sub(r"\d+(\.\d+)?", "N", str(line["reason"])) for line in _events(lines, "worker_restarts"))


def _events(lines: Iterable[str], event: str) -> Iterator[dict[str, Any]]:
    """The lines with this event; what is none of the server's own is passed over."""
    for line in lines:
        if f'"{event}"' not in line:
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict) and value.get("event") == event:
            yield value
