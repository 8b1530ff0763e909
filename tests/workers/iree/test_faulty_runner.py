"""Faults around a real runner: NaN logits are found by the device itself, and only where it is."""

import pytest
from structlog.testing import capture_logs

from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.gate import alone
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault, PlannedFault, raising
from workers.iree.runner import IreeRunner
from workers.sampling.sample_spec import SampleSpec

PROMPT = (3, 7, 11, 2)
SAMPLINGS = [
    Sampling(),
    Sampling(logprobs=2),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.8, top_p=0.9, top_k=20, seed=5),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "logprobs", "sampled", "filtered"])
def test_a_non_finite_row_fails_alone(runner: IreeRunner, sampling: Sampling) -> None:
    spec = SampleSpec(sampling, len(PROMPT))
    (token,) = runner.prefill([Chunk(0, PROMPT, 0, 0)], [spec])
    assert token is not None
    alone = runner.decode([DecodeRow(0, token, 4, 4, SampleSpec(sampling, 5))])
    runner.reset(0)
    one = with_faults(runner, [Fault("nan", calls=0, token=99)])
    for slot in range(3):
        assert one.prefill([Chunk(slot, PROMPT, 0, 0)], [spec]) == [token]
    sampled = one.decode(
        [DecodeRow(slot, given, 4, 4, SampleSpec(sampling, 5)) for slot, given in enumerate((token, 99, token))]
    )
    assert sampled == [*alone, None, *alone]
    if sampling.logprobs is not None:
        (likely,) = one.logprobs([2])
        assert likely.logprob <= 0.0
    one.reset(1)
    assert one.prefill([Chunk(1, (99, 3), 0, 0)], [spec]) == [None]
    one.reset(1)
    with pytest.raises(NotFiniteError):
        one.logits(Chunk(1, (3, 99), 0, 0))
    one.reset(1)
    assert one.prefill([Chunk(1, PROMPT, 0, 0)], [spec]) == [token], "a slot that was reset is as good as new"


def test_a_call_that_fails_has_written_its_rows_until_the_reset(runner: IreeRunner) -> None:
    one = with_faults(runner, raising((1,)))
    spec = SampleSpec(Sampling(), len(PROMPT))
    with pytest.raises(PlannedFault):
        one.prefill([Chunk(0, PROMPT, 0, 0)], [spec])
    row = DecodeRow(0, 5, 4, 4, SampleSpec(Sampling(), 5))
    assert one.decode([row]) == [None], "the rows are there, and not to be trusted"
    one.reset(0)
    with pytest.raises(ValueError, match="a gap after 0 rows"):
        one.decode([row])
    assert one.prefill([Chunk(0, PROMPT, 0, 0)], [spec]) != [None]


def test_the_engine_fails_the_request_alone_and_its_neighbour_goes_on(runner: IreeRunner) -> None:
    request = EngineRequest(1, PROMPT, Sampling(temperature=1.0, seed=5), max_tokens=8)
    whole = alone(runner, request)
    engine = BatchEngine(with_faults(runner, [Fault("nan", calls=0, token=99)]), max_queue=4, step_tokens=64)
    engine.submit(EngineRequest(2, (99, 3), max_tokens=8))
    engine.submit(request)
    steps = []
    with capture_logs():
        while not engine.idle:
            steps.append(engine.step())
    (failure,) = [failure for step in steps for failure in step.failures]
    assert (failure.stream, failure.code) == (2, ErrorCode.NOT_FINITE)
    assert str(NotFiniteError()) in failure.text
    assert [token.token for step in steps for token in step.tokens] == whole
