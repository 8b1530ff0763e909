"""A sequence in the engine, without a scheduler: what its end reports."""

from workers.engine.request import EngineRequest
from workers.engine.sequence import EngineSequence, sequence_end
from workers.engine.step_result import SequenceEnd


def sequence() -> EngineSequence:
    request = EngineRequest(7, (1, 2, 3), resume=(4,))
    return EngineSequence(0, request, [1, 2, 3, 4, 5, 6], 4, (4,), 9, 10.0)


def test_an_end_reports_tokens_and_the_time_of_each_phase() -> None:
    one = sequence()
    one.admitted_at, one.first_token_at, one.cached_tokens = 12.0, 16.0, 2
    assert sequence_end(one, "stop", 24.0) == SequenceEnd(7, "stop", 3, 3, 2.0, 4.0, 8.0, 2)


def test_a_sequence_that_ends_before_its_first_token_has_no_time_of_later_phases() -> None:
    one = sequence()
    assert sequence_end(one, "cancelled", 13.0) == SequenceEnd(7, "cancelled", 3, 3, 3.0, 0.0, 0.0, 0)
    one.admitted_at = 11.0
    assert sequence_end(one, "cancelled", 13.0) == SequenceEnd(7, "cancelled", 3, 3, 1.0, 2.0, 0.0, 0)
