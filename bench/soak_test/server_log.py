"""Worker failures in a server's log. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gateway.routing.failure import Cause

WITHIN = frozenset({Cause.DIED, Cause.STEP})
"""Causes of a lost worker that may be due to what it computed."""


@dataclass(frozen=True)
class Failures:
    """The worker failures that one sequence lived through."""

    within: int = 0
    outside: int = 0
    """Its worker was ended by a signal from outside."""

    @property
    def total(self) -> int:
        return self.within + self.outside


def failures(lines: Iterable[str]) -> dict[str, list[Failures]]:
    """The failures of each sequence that had any, by the id of its request."""
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
    """Counts of the reasons for restarts, each without its numbers."""
    return Counter(re.sub(r"\d+(\.\d+)?", "N", str(line["reason"])) for line in _events(lines, "worker_restarts"))


def _events(lines: Iterable[str], event: str) -> Iterator[dict[str, Any]]:
    """Yield the lines with this event. Lines that are not the server's own are skipped."""
    for line in lines:
        if f'"{event}"' not in line:
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict) and value.get("event") == event:
            yield value
