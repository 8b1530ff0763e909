"""What a server's log says of the faults that it met. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gateway.routing.failure import Cause

WITHIN = frozenset({Cause.DIED, Cause.STEP})
"""Why a sequence lost its worker that may be due to what the worker computed."""


@dataclass(frozen=True)
class Failures:
    """Those that one sequence was there at."""

    within: int = 0
    outside: int = 0
    """Somebody ended its worker."""

    @property
    def total(self) -> int:
        return self.within + self.outside


def failures(lines: Iterable[str]) -> dict[str, list[Failures]]:
    """By the id of the request, of each of its sequences that was there at a failure."""
    found: dict[str, dict[int, Failures]] = {}
    for line in _events(lines, "stream_lost"):
        sequences = found.setdefault(line["request"], {})
        seen = sequences.get(line["choice"], Failures())
        if line["cause"] in WITHIN:
            sequences[line["choice"]] = replace(seen, within=seen.within + 1)
        elif line["cause"] == Cause.KILLED:
            sequences[line["choice"]] = replace(seen, outside=seen.outside + 1)
    return {request: list(sequences.values()) for request, sequences in found.items() if sequences}


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
