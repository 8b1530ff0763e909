"""`baton bench`: measures the speed of the engine with a model, without HTTP."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count

from rich.console import Console
from rich.table import Table

from cli.client.local import load_here
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest

STREAMS = (1, 4, 8)
PROMPTS = (128, 512)
PROMPT_TOKENS = 32
"""Length of the prompt of each stream whose decode is measured."""
MIN_CONTEXT = 64
"""In tokens. Most steps of a shorter context would compute prompts."""

VOCABULARY = 128
"""The prompts use token ids below this one, which every model has."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement. `size` is the number of streams for decode, and of prompt tokens for prefill."""

    kind: str
    size: int
    tokens_per_second: float
    step_ms: float
    """Mean time of an engine step in milliseconds."""


class Bench:
    """Measures an engine, which must be idle."""

    def __init__(self, engine: BatchEngine, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._seconds = seconds
        self._clock = clock
        self._numbers = count(1)

    def figures(self, slots: int, context: int) -> Iterator[Figure]:
        """Yield all measurements that the number of slots and the context in tokens allow."""
        for streams in STREAMS:
            if streams <= slots:
                yield self.decode(streams)
        for length in PROMPTS:
            if length < context:
                yield self.prefill(length)

    def decode(self, streams: int) -> Figure:
        """Measure steps in which each stream gets one token. Steps that compute a prompt are not counted."""
        live = {self._submit(PROMPT_TOKENS, None) for _ in range(streams)}
        tokens, steps, elapsed = 0, 0, 0.0
        warm = False
        while elapsed < self._seconds:
            prompts, began = self._engine.gauges().prefill_tokens, self._clock()
            result = self._engine.step()
            took = self._clock() - began
            if result.failed:
                raise CommandFailed("an engine step failed; see the log line above")
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
        """Measure prompts of this length, one after the other, each with an answer of one token."""
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
                raise CommandFailed("an engine step failed; see the log line above")

    def _submit(self, length: int, max_tokens: int | None) -> int:
        stream = next(self._numbers)
        prompt = tuple((7 * stream + 13 * at) % VOCABULARY for at in range(length))
        self._engine.submit(EngineRequest(stream, prompt, Sampling(), max_tokens))
        return stream


def run_bench(settings: Settings, *, seconds: float, as_json: bool) -> None:
    """Measure the model that the settings name, and print the table. Raises `CommandFailed`."""
    model = ChosenModel.choose(settings)
    loaded = load_here(worker_spec(settings, model))
    try:
        if loaded.context < MIN_CONTEXT:
            raise CommandFailed(
                f"a context of {loaded.context} tokens is too short: give --context {MIN_CONTEXT} or more"
            )
        loaded.engine.settle()
        bench = Bench(loaded.engine, seconds)
        figures = list(bench.figures(settings.max_batch_size, loaded.context))
    finally:
        loaded.engine.close()
    if as_json:
        print(json.dumps({"model": model.name, "figures": [asdict(figure) for figure in figures]}))
        return
    table = Table("phase", "size", "tokens/s", "ms per step", title=model.name, title_justify="left")
    for figure in figures:
        unit = "tokens" if figure.kind == "prefill" else "stream" if figure.size == 1 else "streams"
        size = f"{figure.size} {unit}"
        table.add_row(figure.kind, size, f"{figure.tokens_per_second:,.0f}", f"{figure.step_ms:.2f}")
    Console().print(table)
