"""Drafts by their costs, on a clock that the device moves: what they gain, and that they lose next to nothing."""

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import DecodeRow
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.speculator import Speculator
from workers.scripted.runner import ScriptedRunner

TOKENS = 2000
INT4 = ((1, 2, 4, 8, 16), (1.0, 1.12, 1.35, 1.91, 3.0))
"""Cost of a step by its rows, as measured of quantized weights on a CPU."""
BF16 = ((1, 8, 16), (1.0, 1.05, 1.5))
COSTS = {"bf16": BF16, "int4": INT4}
LOOKUP_S = 0.01
"""Time to draft, relative to a step."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(ScriptedRunner):
    """A step takes as long as its rows cost, and varies by 3 %."""

    def __init__(self, clock: Clock, costs: str) -> None:
        super().__init__(
            slots=8, context=4096, prefill_chunks=(16, 64), decode_rows=8, draft_rows=16, vocab_size=257, alphabet=(97,)
        )
        self._time, self._costs, self._noise = clock, COSTS[costs], random.Random(0)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._time.now += float(np.interp(len(rows), *self._costs)) * self._noise.gauss(1.0, 0.03)
        return super().decode(rows)


class Sometimes(Drafter):
    """Drafts tokens of which each is right with a probability: one up to half of `TOKENS`, and one later."""

    def __init__(self, sequence: EngineSequence, clock: Clock, rates: tuple[float, float]) -> None:
        self._sequence, self._time, self._rates = sequence, clock, rates
        self._randomness = random.Random(sequence.request.stream)

    def draft(self, most: int) -> Sequence[int]:
        self._time.now += LOOKUP_S
        rate = self._rates[self._sequence.completion_tokens > TOKENS // 2]
        return [97 if self._randomness.random() < rate else 98 for _ in range(most)]


def sometimes(clock: Clock, rates: tuple[float, float], sequence: EngineSequence) -> list[Drafter]:
    """Return the only drafter of a sequence."""
    return [Sometimes(sequence, clock, rates)]


def ratio(costs: str, streams: int, rates: tuple[float, float]) -> float:
    """Tokens a second with drafts, relative to those without, while all streams run."""
    seconds = []
    for drafts in (False, True):
        clock = Clock()
        device = Timed(clock, costs)
        make = partial(sometimes, clock, rates)
        speculator = Speculator(device.capabilities, make, fits=device.fits, clock=clock)
        engine = BatchEngine(
            device, max_queue=9, step_tokens=64, speculator=speculator if drafts else None, clock=clock
        )
        for stream in range(streams):
            engine.submit(EngineRequest(stream, (97, 98), max_tokens=3 * TOKENS))
        tokens = 0
        while tokens < TOKENS:
            result = engine.step()
            assert not result.failures
            tokens += len(result.tokens)
        seconds.append(clock.now / tokens)
    return seconds[0] / seconds[1]


@pytest.mark.parametrize("streams", [1, 4, 8])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("costs", sorted(COSTS))
def test_drafts_that_seldom_hit_lose_next_to_nothing(costs: str, rate: float, streams: int) -> None:
    assert ratio(costs, streams, (rate, rate)) >= 0.98


@pytest.mark.parametrize(
    ("costs", "streams", "rate", "least"),
    [
        ("bf16", 1, 0.8, 3.5),
        ("bf16", 1, 0.95, 6.5),
        ("bf16", 8, 0.95, 1.2),
        ("int4", 1, 0.8, 2.0),
        ("int4", 1, 0.95, 3.4),
        ("int4", 4, 0.8, 1.24),
        ("int4", 8, 0.95, 1.15),
    ],
)
def test_drafts_that_often_hit_gain(costs: str, streams: int, rate: float, least: float) -> None:
    assert ratio(costs, streams, (rate, rate)) >= least


@pytest.mark.parametrize("rates", [(0.95, 0.0), (0.0, 0.95)])
def test_answers_that_change_their_kind_gain_where_they_can(rates: tuple[float, float]) -> None:
    assert ratio("int4", 1, rates) >= 1.45
