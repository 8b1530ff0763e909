"""Failures of the runner end the requests of the failed call, with a typed error, and no others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from protocol.bounds import MAX_REASON
from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.gate import alone
from tests.workers.engine.harness.scripted_bench import make
from tests.workers.engine.harness.undrafted import Undrafted
from workers.engine.request import ConstraintFailed, EngineRequest, RequestRefused
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError
from workers.engine.step_result import SequenceFailure
from workers.faults.plan import Fault, raising
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner


def test_a_failing_prefill_fails_its_request_only() -> None:
    bench = make(faults=raising({2}), exact_rows=False)
    for stream in range(3):
        bench.submit(stream, 4, max_tokens=3)
    with capture_logs() as logs:
        assert bench.step()
    assert [entry["event"] for entry in logs] == ["step_failed"]
    assert logs[0]["trace"].endswith("PlannedFault: planned fault in call 2\n")
    assert len(logs[0]["trace"]) <= MAX_REASON
    assert list(bench.failures) == [1]
    assert bench.failures[1].code == ErrorCode.STEP
    assert bench.failures[1].text == "prefill failed: PlannedFault: planned fault in call 2"
    bench.run()
    for stream in (0, 2):
        assert bench.tokens[stream] == alone(
            make().runner, EngineRequest(stream, tuple(range(stream, stream + 4)), max_tokens=3)
        )
    gauges = bench.engine.gauges()
    assert (gauges.sequences_started, gauges.sequences_completed, gauges.steps_failed) == (3, 2, 1)
    assert gauges.prefill_tokens == 8
    assert bench.runner.violations == []


class FailingConstraint(Undrafted):
    """Constraint that allows token 7, and fails when it has accepted two."""

    def __init__(self, error: Exception | None, ended: bool | None = None) -> None:
        """`ended` False: only a late mask shows the failure. Without an error no token is allowed instead."""
        self.error = error
        self.ended = ended
        self.accepted = 0

    def accept(self, token: int) -> None:
        self.accepted += 1

    def mask(self) -> NDArray[np.uint32]:
        if self.accepted == 2 and self.error is None:
            return np.zeros(9, np.uint32)
        if self.accepted == 2 and self.error is not None:
            raise self.error
        return np.array([1 << 7, *[0] * 8], np.uint32)


@pytest.mark.parametrize("ended", [None, False], ids=["mask", "late mask"])
@pytest.mark.parametrize(
    ("error", "failure", "logged"),
    [
        (ConstraintFailed("no token", "guided_regex"), (ErrorCode.INVALID, "no token", "guided_regex"), []),
        (KeyError("bug"), (ErrorCode.INTERNAL, "the constraint failed: KeyError", ""), ["constraint_failed"]),
    ],
    ids=["no token is allowed", "a bug"],
)
def test_a_failing_constraint_ends_its_request_only(
    error: Exception, failure: tuple[ErrorCode, str, str], logged: list[str], ended: bool | None
) -> None:
    bench = make(slots=2)
    bench.engine.submit(EngineRequest(1, (1, 2, 3), max_tokens=9, constraint=FailingConstraint(error, ended)))
    bench.submit(2, 4, max_tokens=5)
    bench.submit(3, 4, max_tokens=5)
    with capture_logs() as logs:
        while not bench.engine.idle:
            bench.step()
    assert [entry["event"] for entry in logs] == logged
    found = bench.failures[1]
    assert (found.code, found.text, found.field) == failure
    assert bench.tokens[1] == [7, 7]
    for stream in (2, 3):
        assert bench.tokens[stream] == alone(
            make().runner, EngineRequest(stream, tuple(range(stream, stream + 4)), max_tokens=5)
        )
    assert bench.engine.gauges().steps_failed == 0
    assert bench.runner.violations == []


def test_an_answer_that_only_its_late_mask_ends_is_complete() -> None:
    bench = make(slots=2)
    bench.engine.submit(EngineRequest(1, (1, 2, 3), max_tokens=9, constraint=FailingConstraint(None, ended=False)))
    bench.submit(2, 4, max_tokens=5)
    while not bench.engine.idle:
        bench.step()
    assert bench.tokens[1] == [7, 7], "what was sampled without a mask is not part of it"
    assert bench.ends[1].reason == "stop"
    assert bench.ends[1].completion_tokens == 2
    assert bench.tokens[2] == alone(make().runner, EngineRequest(2, (2, 3, 4, 5), max_tokens=5))
    assert bench.engine.idle
    assert bench.runner.violations == []


def test_a_constraint_that_fails_at_once_is_refused() -> None:
    constraint = FailingConstraint(ConstraintFailed("no token", "guided_regex"))
    constraint.accepted = 2
    with pytest.raises(RequestRefused, match="no token") as refused:
        make().engine.submit(EngineRequest(1, (1,), constraint=constraint))
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID, "guided_regex")


def test_a_failing_decode_fails_its_rows_and_not_those_that_wait_or_prefill() -> None:
    # Call 1 are two prompts, 2 the decode of both, 3 a chunk of stream 2, 4 the decode that fails.
    bench = make(slots=3, step_tokens=8, faults=raising({4}))
    bench.submit(0, 3, max_tokens=9)
    bench.submit(1, 3, max_tokens=9)
    assert not bench.step()
    bench.submit(2, 20, max_tokens=4)
    bench.submit(3, 4, max_tokens=4)
    assert bench.step()
    assert sorted(bench.failures) == [0, 1]
    assert bench.engine.gauges().slots_active == 1
    bench.run()
    assert sorted(bench.ends) == [2, 3]
    assert bench.tokens[2] == alone(make().runner, EngineRequest(2, tuple(range(2, 22)), max_tokens=4))
    assert bench.runner.violations == []


def test_a_failing_prefill_of_several_prompts_fails_those_of_its_call() -> None:
    bench = make(faults=raising({1}))
    for stream in range(4):
        bench.submit(stream, 4, max_tokens=3)
    assert bench.step()
    assert sorted(bench.failures) == [0, 1]
    bench.run()
    assert sorted(bench.ends) == [2, 3]
    assert bench.tokens[2] == alone(make().runner, EngineRequest(2, (2, 3, 4, 5), max_tokens=3))
    assert bench.runner.violations == []


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_prompt_with_non_finite_logits_fails_alone(logprobs: int | None) -> None:
    sampling = Sampling(logprobs=logprobs)
    bench = make(faults=(Fault("nan", calls=0, token=2),))
    for stream in (0, 3):
        bench.submit(stream, 3, max_tokens=3, sampling=sampling)
    assert bench.step()
    assert sorted(bench.failures) == [0]
    assert bench.runner.calls == 2, "one call for both prompts, one for the row that goes on"
    bench.run()
    assert bench.tokens[3] == alone(make().runner, EngineRequest(3, (3, 4, 5), sampling, max_tokens=3))
    assert bench.runner.violations == []


def test_tokens_of_a_failing_step_come_before_its_failure() -> None:
    bench = make(faults=raising({2}))
    bench.submit(0, 3, max_tokens=9)
    bench.step()
    assert len(bench.tokens[0]) == 1
    assert list(bench.failures) == [0]


def test_consecutive_failed_steps_are_counted_until_one_succeeds() -> None:
    bench = make(faults=raising(set(range(1, 4)) | {6}))
    seen = []
    for stream in range(5):
        bench.submit(stream, 3, max_tokens=2)
        bench.step()
        seen.append(bench.engine.failures_in_a_row)
    # Calls 1, 2 and 3 fail; 4 and 5 succeed; 6 fails; 7 and 8 succeed.
    assert seen == [1, 2, 3, 0, 1]
    bench.step()
    assert bench.engine.failures_in_a_row == 1, "an idle engine takes no step"


class ReplacesTokens(ScriptedRunner):
    """Returns given tokens instead of its last decode rows."""

    def __init__(self, answer: list[int | None], **options: Any) -> None:
        super().__init__(**options)
        self.answer = answer

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        tokens = super().decode(rows)
        return tokens[: len(tokens) - len(self.answer)] + self.answer


@pytest.mark.parametrize("token", [-1, 257, 1 << 40])
def test_a_token_out_of_the_vocabulary_fails_its_row_only(token: int) -> None:
    bench = make(runner=ReplacesTokens([token], slots=2, context=64))
    for stream in range(2):
        bench.submit(stream, 3, max_tokens=2)
    assert bench.step()
    assert list(bench.failures) == [1]
    assert list(bench.ends) == [0]
    assert len(bench.tokens[1]) == 1


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_row_with_non_finite_logits_fails_alone(logprobs: int | None) -> None:
    """The other rows keep their tokens and continue unchanged."""
    sampling = Sampling(temperature=1.0, seed=3, logprobs=logprobs)
    whole = {stream: alone(make().runner, EngineRequest(stream, (stream,), sampling, 12)) for stream in range(3)}
    bad = next(token for token in whole[1][:-1] if token not in whole[0][:-1] + whole[2][:-1])
    bench = make(faults=(Fault("nan", calls=0, token=bad),))
    for stream in range(3):
        bench.submit(stream, 1, max_tokens=12, sampling=sampling)
    with capture_logs() as logs:
        bench.run()
    assert [(entry["event"], entry["stream"]) for entry in logs] == [("step_failed", 1)]
    assert bench.failures == {
        1: SequenceFailure(1, ErrorCode.NOT_FINITE, f"decode failed: NotFiniteError: {NotFiniteError()}")
    }
    assert bench.tokens == {0: whole[0], 1: whole[1][: whole[1].index(bad) + 1], 2: whole[2]}
    assert sorted(bench.ends) == [0, 2]
    gauges = bench.engine.gauges()
    assert (gauges.steps_failed, gauges.slots_active, bench.engine.failures_in_a_row) == (1, 0, 0)
    assert bench.runner.violations == []


def test_a_wrong_number_of_tokens_fails_the_rows() -> None:
    class Short(ScriptedRunner):
        def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
            return super().decode(rows)[1:]

    bench = make(runner=Short(slots=2))
    for stream in range(2):
        bench.submit(stream, 3, max_tokens=4)
    assert bench.step()
    assert sorted(bench.failures) == [0, 1]
    assert "1 tokens for 2 rows" in bench.failures[0].text


def test_a_wrong_number_of_tokens_fails_the_prompts() -> None:
    class Short(ScriptedRunner):
        def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
            return super().prefill(chunks, specs)[1:]

    bench = make(runner=Short(slots=2))
    for stream in range(2):
        bench.submit(stream, 3, max_tokens=4)
    assert bench.step()
    assert sorted(bench.failures) == [0, 1]
    assert "1 tokens for 2 chunks" in bench.failures[0].text


@pytest.mark.parametrize("answer", [None, -1, 257])
def test_a_prefill_that_samples_no_token_fails(answer: int | None) -> None:
    class Silent(ScriptedRunner):
        def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
            super().prefill(chunks, specs)
            return [answer]

    bench = make(runner=Silent(slots=1))
    bench.submit(0, 3)
    assert bench.step()
    assert bench.failures[0].code == ErrorCode.STEP
    assert bench.engine.idle


class Stuck(ScriptedRunner):
    """Runner whose resets fail for a while."""

    def __init__(self, failing: int, **options: Any) -> None:
        super().__init__(**options)
        self.failing = failing

    def reset(self, slot: int) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the device does not answer")
        super().reset(slot)


def test_a_slot_that_cannot_be_reset_stays_unused_until_it_can() -> None:
    bench = make(runner=Stuck(3, slots=1))
    bench.submit(0, 3, max_tokens=1)
    assert bench.step()
    assert bench.ends[0].reason == "length", "its own request is not to blame"
    bench.submit(1, 3, max_tokens=2)
    assert bench.step()
    assert bench.step()
    assert bench.engine.failures_in_a_row == 3
    assert bench.tokens.get(1) is None
    assert bench.engine.gauges().slots_active == 0
    assert not bench.step()
    assert bench.ends[1].reason == "length"
    assert bench.engine.failures_in_a_row == 0
    assert bench.runner.violations == []


def test_an_engine_with_a_dirty_slot_keeps_stepping() -> None:
    bench = make(runner=Stuck(3, slots=1), max_queue=0)
    bench.submit(0, 3, max_tokens=1)
    bench.step()
    with pytest.raises(RequestRefused) as refused:
        bench.submit(1, 3)
    assert refused.value.code is ErrorCode.OVERLOADED
    assert [(bench.engine.idle, bench.step()) for _ in range(4)] == [
        (False, True),
        (False, True),
        (False, False),
        (True, False),
    ]
    assert bench.engine.failures_in_a_row == 0
    bench.submit(1, 3, max_tokens=1)
    bench.run()
    assert bench.ends[1].reason == "length"


def test_a_cancel_survives_a_failing_reset() -> None:
    bench = make(runner=Stuck(1, slots=1))
    bench.submit(0, 3)
    bench.step()
    end = bench.engine.cancel(0)
    assert end is not None
    assert end.reason == "cancelled"
    bench.submit(1, 3, max_tokens=1)
    assert bench.step(), "the failure of the reset is counted by the step after it"
    assert bench.ends[1].reason == "length"


def test_the_text_of_a_failure_is_bounded() -> None:
    class Wordy(ScriptedRunner):
        def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
            raise RuntimeError("x" * 100_000)

    bench = make(runner=Wordy())
    bench.submit(0, 3)
    with capture_logs() as logs:
        bench.step()
    assert len(bench.failures[0].text) == 4096
    assert all(len(str(value)) <= 4096 for entry in logs for value in entry.values())
