"""The loop of a child process that measures one engine: settings, then prompts, come as lines of JSON on stdin.

The answers go to stdout, also as lines of JSON; what libraries print there goes to stderr instead. This module needs
nothing but the standard library, as it runs in the virtual environment of another engine.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass
class Generation:
    """One batch of prompts: the seconds and the number of new tokens of each step, and the tokens of each prompt."""

    steps: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    _last: float = field(default_factory=time.perf_counter)

    def add(self, count: int) -> None:
        """Record that a step ended now, with `count` new tokens."""
        now = time.perf_counter()
        self.steps.append((now - self._last, count))
        self._last = now


class LoadedEngine(Protocol):
    """An engine that has loaded its model."""

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Generation:
        """Greedy generation of `tokens` tokens for each prompt, all prompts submitted at once."""
        ...


def serve(load: Callable[[dict[str, Any]], LoadedEngine]) -> None:
    """Load the engine with the settings in the first line, then answer one line for each line until stdin ends."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)

        def answer(fields: dict[str, Any]) -> None:
            answers.write(json.dumps(fields) + "\n")
            answers.flush()

        engine = load(json.loads(sys.stdin.readline()))
        answer({"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            generation = engine.generate(request["prompts"], request["tokens"])
            answer({"steps": generation.steps, "tokens": generation.tokens})
