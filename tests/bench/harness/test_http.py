"""The decode rate of several streams over HTTP."""

import pytest

from bench.harness.http import decode_rate
from bench.harness.sse_client import Answer


def answer(*stamps: float, tokens: int = 0) -> Answer:
    return Answer(0.0, list(stamps), stamps[-1] if stamps else 0.0, tokens or len(stamps))


def test_the_rate_counts_while_every_answer_is_generated() -> None:
    # The first answer is alone until 2, the second alone after 5: between, six tokens come in three seconds.
    assert decode_rate([answer(0, 1, 2, 3, 4, 5), answer(2, 3, 4, 5, 6, 7)]) == pytest.approx(2.0)


def test_a_chunk_of_several_tokens_counts_for_all() -> None:
    assert decode_rate([answer(0, 1, 2, 3, tokens=8)]) == pytest.approx(2.0)


@pytest.mark.parametrize("answers", [[], [answer()], [answer(0, 1), answer(1, 2)], [answer(3)]])
def test_there_is_no_rate_without_a_common_time(answers: list[Answer]) -> None:
    with pytest.raises(ValueError):
        decode_rate(answers)
