"""Non-finite logits fail their own request, and no request that reused rows beside them."""

import random
from collections.abc import Sequence
from unittest import mock

import pytest
from structlog.testing import capture_logs

from protocol.errors import ErrorCode
from tests.workers.engine.test_engine_prefix import PROMPT, cold, make, run
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

BAD = 99


class NanToken(ScriptedRunner):
    """Runner on which the token BAD makes NaN. It corrupts its own row and earlier ones of its call, as if a masked
    value were multiplied by 0, and sequences that continue behind them get no token."""

    def __init__(self, failing_resets: int = 0) -> None:
        super().__init__(slots=3, context=64, prefill_chunks=(4, 8))
        self.corrupted: dict[int, int] = {}
        """The first corrupted row of a slot."""
        self.failing_resets = failing_resets

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        for chunk in chunks:
            if BAD in chunk.tokens:
                self.corrupted.setdefault(chunk.slot, chunk.start)
        tokens = super().prefill(chunks, specs)
        self._broken |= {chunk.slot for chunk, spec in zip(chunks, specs, strict=True) if spec} & self.corrupted.keys()
        return [None if chunk.slot in self.corrupted else each for chunk, each in zip(chunks, tokens, strict=True)]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        super().copy_prefix(source, target, length)
        first = self.corrupted.get(source, length)
        self.corrupted.pop(target, None)
        if first < length:
            self.corrupted[target] = first

    def reset(self, slot: int) -> None:
        if slot in self.corrupted and self.failing_resets:
            self.failing_resets -= 1
            raise RuntimeError("the device does not answer")
        super().reset(slot)
        self.corrupted.pop(slot, None)


@pytest.mark.parametrize("cancelled", [False, True], ids=["live", "retained"])
def test_a_prompt_with_corrupted_reused_rows_is_recomputed_without_them(cancelled: bool) -> None:
    """The reused rows end where the other prompt has the NaN token, which is not known yet."""
    engine, runner = make(NanToken(), step_tokens=8, prefixes=PrefixPolicy(min_tokens=1))
    bad = EngineRequest(1, (*PROMPT[:20], BAD, *PROMPT[20:]), max_tokens=3)
    good = EngineRequest(2, (*PROMPT[:20], 7, *PROMPT[20:]), max_tokens=3)
    engine.submit(bad)
    for _ in range(3):
        engine.step()
    if cancelled:
        engine.cancel(1)
    tokens, ends, steps = run(engine, good)
    assert tokens == cold(good)
    assert [(end.stream, end.cached_tokens) for end in ends] == [(2, 0)]
    assert [failure.stream for step in steps for failure in step.failures] == ([] if cancelled else [1])
    gauges = engine.gauges()
    assert (gauges.prefix_hits, gauges.prefix_tokens, gauges.slots_active, gauges.kv_tokens) == (0, 0, 0, 0)
    assert gauges.steps_failed == (not cancelled)
    assert runner.violations == []


def test_corrupted_reused_rows_and_others_without_a_token_are_evicted() -> None:
    """Neither of these prompts was found out: they were cancelled before a token of theirs was sampled."""
    runner = NanToken()
    engine, _ = make(runner, step_tokens=8, prefixes=PrefixPolicy(min_tokens=1))
    for stream, first in enumerate((PROMPT[:20], tuple(range(50, 70)))):
        engine.submit(EngineRequest(stream, (*first, BAD, *PROMPT[20:]), max_tokens=3))
        for _ in range(3):
            engine.step()
        engine.cancel(stream)
    assert len(runner.corrupted) == 2
    assert engine.gauges().retained_tokens >= 2 * 20
    good = EngineRequest(2, (*PROMPT[:20], 7, *PROMPT[20:]), max_tokens=3)
    tokens, _, _ = run(engine, good)
    assert tokens == cold(good)
    assert engine.gauges().retained_tokens == len(good.prompt) + 2, "its own"
    assert (runner.corrupted, runner.violations) == ({}, [])


def test_a_prompt_with_its_own_nan_fails_once() -> None:
    engine, runner = make(NanToken(), step_tokens=8, prefixes=PrefixPolicy(min_tokens=1))
    run(engine, EngineRequest(1, PROMPT, max_tokens=3))
    _, ends, steps = run(
        engine, EngineRequest(2, (*PROMPT, BAD, 3, 4), max_tokens=3), EngineRequest(3, (5, 6), max_tokens=2)
    )
    assert [failure.stream for step in steps for failure in step.failures] == [2]
    assert [end.stream for end in ends] == [3]
    assert runner.violations == []


def test_a_failed_reset_before_a_recomputation_fails_the_request() -> None:
    engine, runner = make(NanToken(failing_resets=2), step_tokens=8, prefixes=PrefixPolicy(min_tokens=1))
    run(engine, EngineRequest(1, PROMPT, max_tokens=3))
    _, _, steps = run(engine, EngineRequest(2, (*PROMPT, BAD, 3), max_tokens=3))
    (failure,) = [failure for step in steps for failure in step.failures]
    assert (failure.stream, failure.text) == (2, "reset failed: RuntimeError: the device does not answer")
    assert len(run(engine, *(EngineRequest(stream, (5, stream), max_tokens=2) for stream in range(3, 6)))[1]) == 3
    assert runner.violations == []


class Damaged(NanToken):
    """Runner whose logits are all NaN after a number of calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        tokens = super().prefill(chunks, specs)
        self.left -= 1
        if self.left >= 0:
            return tokens
        self._broken |= {chunk.slot for chunk in chunks}
        return [None] * len(chunks)


def test_non_finite_requests_do_not_count_against_a_finite_model() -> None:
    """Otherwise one client could end the worker of all others with ten such prompts."""
    engine, runner = make(NanToken(), step_tokens=8)
    for stream in range(12):
        (step,) = run(engine, EngineRequest(stream, (BAD, stream), max_tokens=3))[2]
        assert [(failure.stream, failure.code) for failure in step.failures] == [(stream, ErrorCode.NOT_FINITE)]
        assert step.failed
        assert engine.failures_in_a_row == 0
    gauges = engine.gauges()
    assert (gauges.steps_failed, gauges.slots_active, gauges.kv_tokens) == (12, 0, 0)
    assert runner.violations == []


def test_non_finite_requests_count_if_the_model_is_not_finite() -> None:
    engine, runner = make(Damaged(calls=1), step_tokens=8)
    run(engine, EngineRequest(0, (5, 6), max_tokens=1))
    for stream in range(1, 4):
        (step,) = run(engine, EngineRequest(stream, (5, stream), max_tokens=3))[2]
        assert [failure.code for failure in step.failures] == [ErrorCode.STEP]
        assert engine.failures_in_a_row == stream
    assert runner.violations == []


def test_the_model_is_not_checked_if_another_row_is_finite() -> None:
    engine, runner = make(NanToken(), step_tokens=64)
    engine.submit(EngineRequest(1, (BAD, 1), max_tokens=3))
    engine.submit(EngineRequest(2, (5, 6), max_tokens=3))
    step = engine.step()
    assert [failure.stream for failure in step.failures] == [1]
    assert (engine.failures_in_a_row, runner.calls) == (0, 2), "one call for the prompts, one for the row that goes on"


def test_a_failing_check_counts_against_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner = make(NanToken(), step_tokens=8)
    engine.submit(EngineRequest(1, (BAD, 1), max_tokens=3))
    first = runner.prefill

    def prefill(chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        monkeypatch.setattr(runner, "prefill", mock.Mock(side_effect=RuntimeError("the device is gone")))
        return first(chunks, specs)

    monkeypatch.setattr(runner, "prefill", prefill)
    with capture_logs() as logs:
        engine.step()
    assert engine.failures_in_a_row == 1
    assert [entry["event"] for entry in logs] == ["step_failed", "probe_failed"]
    assert engine.idle


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_reset_counts_even_if_the_model_is_finite(failing: int) -> None:
    """The reset of the request's slot, and that of the check's slot."""
    engine, _ = make(NanToken(), step_tokens=8)
    engine.submit(EngineRequest(1, (BAD, 1), max_tokens=3))
    resets = [None] * (failing - 1) + [RuntimeError("no answer")]
    with mock.patch.object(NanToken, "reset", side_effect=resets), capture_logs():
        assert engine.step().failed
    assert engine.failures_in_a_row == 1


def some_requests(randomness: random.Random) -> list[EngineRequest]:
    """Requests with few different prefixes, so that most reuse rows, and the NaN token in every third."""
    beginnings = [[randomness.randrange(90) for _ in range(randomness.randint(5, 40))] for _ in range(2)]
    requests = []
    for stream in range(12):
        beginning = randomness.choice(beginnings)
        prompt = beginning[: randomness.randint(0, len(beginning))]
        prompt += [randomness.randrange(90) for _ in range(randomness.randint(1, 8))]
        if stream % 3 == 0:
            prompt.insert(randomness.randint(0, len(prompt)), BAD)
        requests.append(EngineRequest(stream, tuple(prompt), max_tokens=randomness.choice((1, 3, 30))))
    return requests


@pytest.mark.parametrize("seed", range(30))
def test_only_sequences_with_the_nan_token_fail_in_any_schedule(seed: int) -> None:
    randomness = random.Random(seed)
    engine, runner = make(
        NanToken(),
        step_tokens=randomness.choice((1, 8, 64)),
        kv_tokens=randomness.choice((None, 64, 100)),
        prefixes=PrefixPolicy(max_rows=randomness.choice((None, 40)), min_tokens=randomness.choice((1, 4))),
    )
    requests = some_requests(randomness)
    waiting, got = list(requests), {request.stream: list[int]() for request in requests}
    failed, ended = set[int](), set[int]()
    with capture_logs():
        while waiting or not engine.idle:
            for request in [waiting.pop(0) for _ in range(min(len(waiting), randomness.choice((0, 1, 2))))]:
                engine.submit(request)
            if randomness.random() < 0.2:
                engine.cancel(randomness.randrange(len(requests)))
            step = engine.step()
            failed |= {failure.stream for failure in step.failures}
            ended |= {end.stream for end in step.ends}
            for token in step.tokens:
                got[token.stream].append(token.token)
    assert all(BAD in requests[stream].prompt for stream in failed)
    assert not any(BAD in requests[stream].prompt for stream in ended)
    assert {stream: got[stream] for stream in ended} == {stream: cold(requests[stream]) for stream in ended}
    assert (engine.gauges().slots_active, engine.gauges().kv_tokens, runner.violations) == (0, 0, [])
