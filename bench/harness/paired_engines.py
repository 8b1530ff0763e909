"""Two engines on one runner, each with half of its slots, that take turns: what disturbs the machine disturbs both."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from protocol.events import Gauges
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.engine.speculation.speculator import Speculator
from workers.sampling.sample_spec import SampleSpec

TURN_S = 0.005
"""Seconds of a turn; a step that takes longer is one by itself."""
RESAMPLES = 400
GROUP = 20
"""Pairs that are resampled together: neighbours meet the same load."""


class HalfRunner:
    """The part of `workers.engine.runner.Runner` that decoding needs, on some of the slots of a runner."""

    def __init__(self, runner: Runner, first: int, slots: int) -> None:
        self._runner = runner
        self._first = first
        self.capabilities = replace(runner.capabilities, slots=slots, decode_rows=slots, draft_rows=2 * slots)
        self.graphs_failed = 0
        self.vision = None

    def fits(self, rows: int) -> bool:
        return self._runner.fits(rows)

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        return self._runner.prefill([structs.replace(each, slot=each.slot + self._first) for each in chunks], specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        return self._runner.decode([structs.replace(each, slot=each.slot + self._first) for each in rows])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._runner.copy_prefix(source + self._first, target + self._first, length)

    def reset(self, slot: int) -> None:
        self._runner.reset(slot + self._first)


class EngineTurn(NamedTuple):
    """Steps of one engine without a pause."""

    seconds: float
    cpu_s: float
    """Processor time of all threads."""
    tokens: int


class Side:
    """One of the engines, with as many streams as it is kept at."""

    def __init__(
        self,
        runner: HalfRunner | Runner,
        speculator: Speculator | None,
        streams: int,
        request: Callable[[int], EngineRequest],
    ) -> None:
        """`request` makes the request of a stream; both sides have the same ones."""
        self._engine = BatchEngine(
            runner,  # type: ignore[arg-type]  # nothing else of a runner is used
            max_queue=streams,
            step_tokens=1 << 20,
            prefixes=PrefixPolicy(enabled=False),
            speculator=speculator,
        )
        self._streams = streams
        self._request = request
        self._made = self._open = 0

    @property
    def gauges(self) -> Gauges:
        return self._engine.gauges()

    def turn(self, seconds: float) -> EngineTurn:
        """Decode for so long, or until a sequence ends. Prompts are prefilled before."""
        while self._open < self._streams:
            self._engine.submit(self._request(self._made))
            self._made, self._open = self._made + 1, self._open + 1
            self._step()
        before, cpu, began = self.gauges.decode_tokens, time.process_time(), time.perf_counter()
        while self._step() and time.perf_counter() - began < seconds:
            pass
        took = time.perf_counter() - began
        return EngineTurn(took, time.process_time() - cpu, self.gauges.decode_tokens - before)

    def _step(self) -> bool:
        """Return whether all sequences go on."""
        result = self._engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        self._open -= len(result.ends)
        return not result.ends


def take_turns(off: Side, on: Side, seconds: float, turn_s: float) -> list[tuple[EngineTurn, EngineTurn]]:
    """Return pairs of turns, in which either is first in turn."""
    pairs: list[tuple[EngineTurn, EngineTurn]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(pairs) < 2 * GROUP:
        if len(pairs) % 2:
            pairs.append((off.turn(turn_s), on.turn(turn_s)))
        else:
            second, first = on.turn(turn_s), off.turn(turn_s)
            pairs.append((first, second))
    return pairs


class Ratio(NamedTuple):
    """Tokens a second of the second engine relative to the first one, with its bounds of 95 % confidence."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[EngineTurn, EngineTurn]], field: str) -> "Ratio":
        """Return the ratio by `seconds` or `cpu_s`; the bounds are those of a bootstrap over groups of pairs."""
        groups = [pairs[at : at + GROUP] for at in range(0, len(pairs) - GROUP + 1, GROUP)]

        def per_token(chosen: Sequence[Sequence[tuple[EngineTurn, EngineTurn]]], side: int) -> float:
            turns = [pair[side] for group in chosen for pair in group]
            return sum(float(getattr(turn, field)) for turn in turns) / sum(turn.tokens for turn in turns)

        randomness = random.Random(0)
        resampled = [randomness.choices(groups, k=len(groups)) for _ in range(RESAMPLES)]
        bounds = statistics.quantiles([per_token(each, 0) / per_token(each, 1) for each in resampled], n=40)
        return cls(per_token(groups, 0) / per_token(groups, 1), bounds[0], bounds[-1])


def compared(pairs: Sequence[tuple[float, float]], gauges: Gauges) -> str:
    """Return the columns of a table for tokens a second without drafts and with them: the medians, that of the ratios
    of pairs, the drafted tokens, and the part of them that was accepted."""
    off, on = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(on / off for off, on in pairs)
    accepted = gauges.accepted_tokens / gauges.draft_tokens if gauges.draft_tokens else 0.0
    return f"{off:10.1f} {on:10.1f} {ratio:8.2f} {gauges.draft_tokens:8} {accepted:9.0%}"
