"""The measurement that every link goes through, without a link."""

from bench.links.meter import DELTAS, GO, SMALL, STEP, WARM_UP, Meter, decoded_tokens
from protocol.codec import encode


def test_round_trips_come_first_and_then_the_stream() -> None:
    meter = Meter(trips=3, frames=4)
    answers = [meter.receive(SMALL) for _ in range(WARM_UP + 3)]
    assert answers == [SMALL] * (WARM_UP + 3)
    assert meter.receive(SMALL) == GO
    step = encode(STEP)
    assert [meter.receive(step) for _ in range(4)] == [b"", b"", b"", None]
    assert meter.figures["trip_us"] > 0
    assert meter.figures["tokens_s"] > 0


def test_a_step_has_a_token_for_each_delta() -> None:
    assert decoded_tokens(encode(STEP)) == DELTAS
