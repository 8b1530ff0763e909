"""Gate of prefix reuse for any runner: a sequence with reused rows gets the tokens of a cold run.

More conversations than there are slots share a prefix and continue for some turns, so that rows are reused in place,
copied from running and from retained slots, truncated and evicted. One conversation in each turn is cancelled.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol.request import Sampling
from tests.gate import SAMPLINGS, alone, replace_seed
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.sampling.sample_spec import SampleSpec


@dataclass(frozen=True)
class PrefixReport:
    """Counts of the cases that the gate covered, so that a test can assert that they were enough."""

    requests: int
    hits: int
    tokens: int
    """Tokens that were taken from another sequence instead of being computed."""
    in_place: int
    copies: int
    """Times that rows went from one slot to another."""


class CopySpy:
    """Runner that counts its copies."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.capabilities, self.graphs_failed = runner.capabilities, runner.graphs_failed
        self.draft_head, self.attention, self.vision = runner.draft_head, runner.attention, runner.vision
        self.reset, self.memory, self.close, self.logits = runner.reset, runner.memory, runner.close, runner.logits
        self.logprobs, self.settle, self.fits = runner.logprobs, runner.settle, runner.fits
        self.prefill_reported, self.reported_rows = runner.prefill_reported, runner.reported_rows
        self.hidden = runner.hidden
        self.read_rows, self.write_rows = runner.read_rows, runner.write_rows
        self.read_state, self.write_state = runner.read_state, runner.write_state
        self.in_place = self.copies = 0

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        return self._runner.prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        return self._runner.decode(rows)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.in_place += source == target and length > 0
        self.copies += source != target
        self._runner.copy_prefix(source, target, length)


def run_prefix_gate(
    make_runner: Callable[[], Runner], *, turns: int = 3, begin: int | None = None, max_tokens: int = 6
) -> PrefixReport:
    """Run the gate. `begin` is the number of tokens that all conversations share (default: a little over the smallest
    chunk).

    Raises `AssertionError` when a stream differs from its cold run in any token.
    """
    runner = CopySpy(make_runner())
    try:
        planned = _plan(runner, turns, begin or runner.capabilities.prefill_chunks[0] + 3, max_tokens)
        engine = BatchEngine(
            runner, max_queue=64, step_tokens=64, prefixes=PrefixPolicy(min_tokens=1), state_cache_bytes=1 << 28
        )
        for turn in planned:
            _serve(engine, turn)
        gauges = engine.gauges()
        assert (gauges.slots_active, gauges.kv_tokens) == (0, 0), gauges
        return PrefixReport(
            sum(map(len, planned)), gauges.prefix_hits, gauges.prefix_tokens, runner.in_place, runner.copies
        )
    finally:
        runner.close()


def _plan(runner: Runner, turns: int, begin: int, max_tokens: int) -> list[dict[EngineRequest, list[int]]]:
    """Return the requests of each turn, with the tokens of each when it is served alone and cold."""
    randomness = random.Random(5)
    capabilities = runner.capabilities

    def some(count: int) -> tuple[int, ...]:
        return tuple(randomness.randrange(capabilities.vocab_size) for _ in range(count))

    beginning = some(begin)
    talks = [beginning] * (capabilities.slots + 2)
    planned: list[dict[EngineRequest, list[int]]] = []
    for _ in range(turns):
        turn: dict[EngineRequest, list[int]] = {}
        for index, talk in enumerate(talks):
            # Every third one begins anew, somewhere within what all share.
            talk = beginning[: begin - index] if index % 3 == 2 else talk
            stream = 1 + len(planned) * len(talks) + index
            sampling: Sampling = replace_seed(SAMPLINGS[stream % len(SAMPLINGS)], stream)
            request = EngineRequest(stream, talk + some(1 + (index * 5) % 9), sampling, max_tokens)
            turn[request] = alone(runner, request)
            talks[index] = request.prompt + tuple(turn[request])
        planned.append(turn)
    return planned


def _serve(engine: BatchEngine, expected: dict[EngineRequest, list[int]]) -> None:
    got: dict[int, list[int]] = {request.stream: [] for request in expected}
    cancelled = min(got)
    for request in expected:
        engine.submit(request)
    while not engine.idle:
        result = engine.step()
        assert not result.failures, result.failures
        for token in result.tokens:
            got[token.stream].append(token.token)
        if len(got[cancelled]) > 1:
            engine.cancel(cancelled)
    for request, tokens in expected.items():
        actual = got[request.stream]
        assert actual == tokens[: len(actual)], f"{request}: got {actual}, want {tokens}"
        assert len(actual) == len(tokens) or request.stream == cancelled
