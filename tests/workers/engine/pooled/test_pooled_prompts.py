"""Prompts whose hidden states are pooled, beside sequences that generate: shares of steps, exact vectors, and ends."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ErrorCode
from protocol.scheduling import Urgency
from workers.engine.engine import BatchEngine
from workers.engine.pooled.pooled_prompt import PooledPrompt
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.engine.step_result import StepResult
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault
from workers.pooling.pooler import VectorPooler
from workers.pooling.pooling import Pooling
from workers.scripted.runner import ScriptedRunner

WIDTH = 4
PROMPT = tuple(range(40, 70))


class Recorder(ScriptedRunner):
    """Records the kinds and lengths of its calls, of each step."""

    def __init__(self, slots: int = 4, *, exact_rows: bool = True, bidirectional: bool = False) -> None:
        super().__init__(
            slots=slots,
            context=64,
            prefill_chunks=(4, 8) if not bidirectional else (32,),
            exact_rows=exact_rows,
            hidden_width=WIDTH,
            bidirectional=bidirectional,
        )
        self.steps: list[list[tuple[str, int]]] = [[]]

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        self.steps[-1] += [("hidden", len(chunk.tokens)) for chunk in chunks]
        return super().hidden(chunks)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.steps[-1].append(("decode", len(rows)))
        return super().decode(rows)


def engine(runner: Runner, step_tokens: int = 16, max_queue: int = 8) -> BatchEngine:
    return BatchEngine(runner, max_queue=max_queue, step_tokens=step_tokens, prefixes=PrefixPolicy(min_tokens=4))


def pooled(stream: int, prompt: tuple[int, ...] = PROMPT, kind: str = "mean", **fields: object) -> EngineRequest:
    made = PooledPrompt(lambda: VectorPooler(Pooling(kind)), fields.pop("token_types", None))  # type: ignore[arg-type]
    return EngineRequest(stream, prompt, max_tokens=0, pooled=made, **fields)  # type: ignore[arg-type]


def run(one: BatchEngine, runner: ScriptedRunner) -> list[StepResult]:
    results = []
    while not one.idle:
        results.append(one.step())
        if isinstance(runner, Recorder):
            runner.steps.append([])
    assert runner.violations == []
    assert one.gauges().slots_active == 0
    return results


def vectors(results: Sequence[StepResult]) -> dict[int, bytes]:
    return {end.stream: end.vector for result in results for end in result.ends if end.vector}


def alone(prompt: tuple[int, ...] = PROMPT, kind: str = "mean", **options: bool) -> bytes:
    runner = Recorder(**options)
    one = engine(runner, step_tokens=64)
    one.submit(pooled(1, prompt, kind))
    return vectors(run(one, runner))[1]


@pytest.mark.parametrize("kind", ["cls", "last", "mean"])
@pytest.mark.parametrize("exact", [True, False])
def test_vectors_are_the_same_bits_in_any_chunks(kind: str, exact: bool) -> None:
    expected = {length: alone(PROMPT[:length], kind, exact_rows=exact) for length in (30, 17, 1)}
    (whole,) = Recorder().hidden([Chunk(0, PROMPT[:8], 0, 0)])
    assert np.frombuffer(alone(PROMPT[:1], kind), "<f4").shape == (whole.shape[1],)
    for step_tokens in (1, 5, 16):
        runner = Recorder(exact_rows=exact)
        one = engine(runner, step_tokens)
        for stream, length in enumerate(expected, 1):
            one.submit(pooled(stream, PROMPT[:length], kind))
        one.submit(EngineRequest(9, PROMPT[::-1], max_tokens=5))
        assert vectors(run(one, runner)) == dict(enumerate(expected.values(), 1))


def test_a_batch_of_long_texts_lets_others_decode() -> None:
    """Each step computes tokens of prompts within its budget, and a row of what decodes."""
    runner = Recorder()
    one = engine(runner, step_tokens=9)
    one.submit(EngineRequest(1, PROMPT[:4], max_tokens=20))
    one.step()
    runner.steps.append([])
    for stream in range(2, 8):
        one.submit(pooled(stream))
    results = run(one, runner)
    busy = [step for step in runner.steps if any(kind == "hidden" for kind, _ in step)]
    assert len(busy) >= 6 * len(PROMPT) // 8
    for step in busy[:18]:
        assert step[-1] == ("decode", 1)
        assert sum(size for kind, size in step if kind == "hidden") <= 8
    assert len(vectors(results)) == 6


def test_whole_sequences_of_a_bidirectional_model_share_calls() -> None:
    runner = Recorder(bidirectional=True)
    one = engine(runner, step_tokens=64)
    lengths = (10, 12, 30, 5, 40, 3)
    prompts = [tuple(range(length)) for length in lengths]
    for stream, prompt in enumerate(prompts):
        one.submit(pooled(stream, prompt))
    results = run(one, runner)
    assert [size for step in runner.steps for _, size in step] == list(lengths)
    assert runner.calls == 5  # 10 + 12; 30; 5; 40: alone, as it is longer than a call; 3
    assert vectors(results) == {n: alone(each, bidirectional=True) for n, each in enumerate(prompts)}


def test_token_types_reach_the_runner() -> None:
    runner = Recorder(bidirectional=True)
    one = engine(runner)
    one.submit(pooled(1, PROMPT[:4], token_types=(0, 0, 1, 1)))
    assert vectors(run(one, runner))[1] != alone(PROMPT[:4], bidirectional=True)


def test_a_pooled_prompt_takes_no_rows_and_leaves_none() -> None:
    runner = ScriptedRunner(slots=2, context=64, prefill_chunks=(4, 8), hidden_width=WIDTH)
    one = engine(runner)
    one.submit(EngineRequest(1, PROMPT, max_tokens=2))
    run(one, runner)
    kept = one.gauges().retained_tokens
    assert kept > 0
    one.submit(pooled(2))
    assert vectors(run(one, runner)) == {2: alone()}
    assert one.gauges().retained_tokens == kept
    assert one.gauges().prefix_hits == 0


def test_failures_end_one_sequence_or_one_call() -> None:
    runner = Recorder()
    one = engine(with_faults(runner, [Fault(kind="nan", call=1)]), step_tokens=8)
    one.submit(pooled(1, PROMPT[:4]))
    one.submit(pooled(2, PROMPT[:20]))
    failures = [failure for result in run(one, runner) for failure in result.failures]
    assert {(each.stream, each.code) for each in failures} == {(1, ErrorCode.NOT_FINITE), (2, ErrorCode.NOT_FINITE)}
    one.submit(pooled(3))
    assert vectors(run(one, runner)) == {3: alone()}


def test_a_cancelled_prompt_frees_its_slot() -> None:
    runner = Recorder(slots=1)
    one = engine(runner, step_tokens=4)
    one.submit(pooled(1))
    one.step()
    ended = one.cancel(1)
    assert ended is not None
    assert (ended.reason, ended.vector) == ("cancelled", b"")
    one.submit(pooled(2))
    assert vectors(run(one, runner)) == {2: alone()}


def test_what_the_runner_cannot_compute_is_refused() -> None:
    plain, encoder = engine(ScriptedRunner()), engine(Recorder(bidirectional=True))
    cases = [
        (plain, pooled(1), ErrorCode.UNSUPPORTED),
        (encoder, EngineRequest(1, PROMPT), ErrorCode.UNSUPPORTED),
        (encoder, pooled(1, tuple(range(65))), ErrorCode.CONTEXT),
        (encoder, pooled(1, token_types=(0,)), ErrorCode.INVALID),
        (encoder, pooled(1, PROMPT[:4], resume=(3,)), ErrorCode.INVALID),
        (encoder, pooled(1, prompt_logprobs=True), ErrorCode.UNSUPPORTED),
    ]
    for one, request, code in cases:
        with pytest.raises(RequestRefused) as refused:
            one.submit(request)
        assert refused.value.code is code
        assert one.idle
    encoder.submit(pooled(1, tuple(range(64))))  # the whole context
    assert len(encoder.step().ends) == 1


def test_a_pooled_prompt_is_preempted_for_room_and_starts_again() -> None:
    runner = Recorder(slots=2)
    one = BatchEngine(runner, max_queue=8, step_tokens=2, kv_tokens=64, reserved_rows=1)
    one.submit(EngineRequest(1, PROMPT, max_tokens=30))
    for _ in range(10):
        one.step()
    one.submit(pooled(2, urgency=Urgency.of("low", 0)))
    results = run(one, runner)
    assert one.gauges().preemptions == 1
    assert vectors(results)[2] == alone()


def test_a_pooled_prompt_keeps_its_slot_before_an_urgent_request() -> None:
    """As any that ends soon: what it has computed would be lost."""
    runner = Recorder(slots=1)
    one = engine(runner, step_tokens=8)
    one.submit(pooled(1, urgency=Urgency.of("low", 0)))
    results = [one.step()]
    one.submit(EngineRequest(2, PROMPT[:6], max_tokens=2, urgency=Urgency.of("high", 0)))
    results += run(one, runner)
    assert [end.stream for result in results for end in result.ends] == [1, 2]


@pytest.mark.parametrize("step_tokens", [1, 8])
def test_streams_that_never_end_do_not_keep_a_text_waiting(step_tokens: int) -> None:
    """All but one slot decode, and another prompt comes whenever one has left: a text gets its turn, and its share of
    each step."""
    runner = Recorder()
    one = engine(runner, step_tokens)
    stream = 1
    for _ in range(6):
        one.submit(EngineRequest(stream, PROMPT[:4], max_tokens=6))
        stream += 1
    text = stream
    one.submit(pooled(text))
    steps, result = 1, one.step()
    while not any(end.stream == text for end in result.ends):
        result, steps = one.step(), steps + 1
        for _ in result.ends:
            stream += 1
            one.submit(EngineRequest(stream, PROMPT[:4], max_tokens=6))
    assert vectors([result]) == {text: alone()}
    # The six before it, with four tokens to compute and six to generate, and its own: each in turn if need be.
    assert steps <= 6 * (4 + 6) + len(PROMPT) * (4 if step_tokens == 1 else 1)


class Infinite(Recorder):
    """The hidden states of a token are infinite, which a pooling of other tokens or an activation may hide."""

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        states = super().hidden(chunks)
        for chunk, rows in zip(chunks, states, strict=True):
            rows[[token == PROMPT[5] for token in chunk.tokens]] = np.inf
        return states


@pytest.mark.parametrize("kind", ["cls", "last", "mean"])
def test_hidden_states_that_are_not_finite_are_an_error_whatever_is_read_of_them(kind: str) -> None:
    runner = Infinite()
    one = engine(runner)
    one.submit(pooled(1, PROMPT, kind))
    one.submit(pooled(2, PROMPT[:5], kind))
    results = run(one, runner)
    failures = [failure for result in results for failure in result.failures]
    assert [(each.stream, each.code) for each in failures] == [(1, ErrorCode.NOT_FINITE)]
    assert vectors(results) == {2: alone(PROMPT[:5], kind)}
