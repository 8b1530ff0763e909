"""`baton bench`: how fast the engine is with a model here, without HTTP: tokens a second of decode and of prefill."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count

from rich.console import Console
from rich.table import Table

from cli.client.local import load_here
from cli.model import ChosenModel, worker_spec
from cli.options import CommandFailed
from cli.settings import Settings
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest

STREAMS = (1, 4, 8)
PROMPTS = (128, 512)
PROMPT_TOKENS = 32
"""Of each stream whose decode is measured."""

VOCABULARY = 128
"""Token ids that the prompts use: every model has these."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured speed. `size` is streams for decode and prompt tokens for prefill."""

    kind: str
    size: int
    tokens_per_second: float
    step_ms: float
    """Mean time of one engine step, in milliseconds."""


class Bench:
    """Owns an idle engine for as long as it measures."""

    def __init__(self, engine: BatchEngine, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._seconds = seconds
        self._clock = clock
        self._numbers = count(1)

    def figures(self, slots: int, context: int) -> Iterator[Figure]:
        """All figures that a batch of `slots` and a context of so many tokens allow."""
        for streams in STREAMS:
            if streams <= slots:
                yield self.decode(streams)
        for length in PROMPTS:
            if length < context:
                yield self.prefill(length)

    def decode(self, streams: int) -> Figure:
        """Steps in which each of so many streams gets one token; steps with a prompt in them are not counted."""
        live = {self._submit(PROMPT_TOKENS, None) for _ in range(streams)}
        tokens, steps, elapsed = 0, 0, 0.0
        warm = False
        while elapsed < self._seconds:
            prompts, began = self._engine.gauges().prefill_tokens, self._clock()
            result = self._engine.step()
            took = self._clock() - began
            if result.failed:
                raise CommandFailed("an engine step failed; its log line says why")
            if warm and self._engine.gauges().prefill_tokens == prompts and len(result.tokens) == streams:
                tokens, steps, elapsed = tokens + streams, steps + 1, elapsed + took
            warm = warm or len(result.tokens) == streams
            for end in result.ends:
                live.remove(end.stream)
                live.add(self._submit(PROMPT_TOKENS, None))
        for stream in live:
            self._engine.cancel(stream)
        return Figure("decode", streams, tokens / elapsed, elapsed / steps * 1000)

    def prefill(self, length: int) -> Figure:
        """Prompts of so many tokens, one after the other, each with one token of answer."""
        self._run(length)
        prompts, steps, began = 0, self._engine.gauges().steps, self._clock()
        while (elapsed := self._clock() - began) < self._seconds:
            self._run(length)
            prompts += 1
        return Figure(
            "prefill", length, prompts * length / elapsed, elapsed / (self._engine.gauges().steps - steps) * 1000
        )

    def _run(self, length: int) -> None:
        self._submit(length, 1)
        while not self._engine.idle:
            if self._engine.step().failed:
                raise CommandFailed("an engine step failed; its log line says why")

    def _submit(self, length: int, max_tokens: int | None) -> int:
        stream = next(self._numbers)
        prompt = tuple((7 * stream + 13 * at) % VOCABULARY for at in range(length))
        self._engine.submit(EngineRequest(stream, prompt, Sampling(), max_tokens))
        return stream


def run_bench(settings: Settings, *, seconds: float, as_json: bool) -> None:
    """Print the figures of the settings' model. Raises `CommandFailed`."""
    model = ChosenModel.choose(settings)
    loaded = load_here(worker_spec(settings, model))
    try:
        loaded.engine.settle()
        bench = Bench(loaded.engine, seconds)
        figures = list(bench.figures(settings.max_batch_size, loaded.context))
    finally:
        loaded.engine.close()
    if as_json:
        print(json.dumps({"model": model.name, "figures": [asdict(figure) for figure in figures]}))
        return
    table = Table("what", "size", "tokens/s", "ms a step", title=model.name, title_justify="left")
    for figure in figures:
        size = f"{figure.size} {'streams' if figure.kind == 'decode' else 'tokens'}"
        table.add_row(figure.kind, size, f"{figure.tokens_per_second:,.0f}", f"{figure.step_ms:.2f}")
    Console().print(table)
