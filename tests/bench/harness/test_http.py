"""The decode rate of several streams over HTTP."""

import pytest

from bench.harness.http import TRIES, Client, NotTogetherError, decode_rate
from bench.harness.sse_client import StreamedAnswer
from bench.measurement.rounds import RefusedError


def answer(*stamps: float, tokens: int = 0) -> StreamedAnswer:
    return StreamedAnswer(0.0, list(stamps), stamps[-1] if stamps else 0.0, tokens or len(stamps))


def test_the_rate_counts_while_every_answer_is_generated() -> None:
    # The first answer is alone until 2, the second alone after 5: between, six tokens come in three seconds.
    assert decode_rate([answer(0, 1, 2, 3, 4, 5), answer(2, 3, 4, 5, 6, 7)]) == pytest.approx(2.0)


def test_a_chunk_of_several_tokens_counts_for_all() -> None:
    assert decode_rate([answer(0, 1, 2, 3, tokens=8)]) == pytest.approx(2.0)


@pytest.mark.parametrize("answers", [[answer(0, 1), answer(1, 2)], [answer(3)]])
def test_there_is_no_rate_without_a_common_time(answers: list[StreamedAnswer]) -> None:
    with pytest.raises(NotTogetherError):
        decode_rate(answers)


@pytest.mark.parametrize("answers", [[], [answer()], [answer(0, 1), answer()]])
def test_there_is_no_rate_without_text(answers: list[StreamedAnswer]) -> None:
    with pytest.raises(ValueError, match="no text"):
        decode_rate(answers)


@pytest.mark.parametrize(("apart", "rate"), [(0, 2.0), (TRIES - 1, 2.0), (TRIES, None)])
def test_requests_that_were_read_one_by_one_are_sent_again(
    apart: int, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bursts = [[answer(0, 1), answer(1, 2)]] * apart + [[answer(0, 1, 2, 3, tokens=8)]]

    async def burst(client: Client, streams: int, prompt: int, tokens: int) -> list[StreamedAnswer]:
        return [answer(0, 1)] if tokens == 4 else bursts.pop(0)

    monkeypatch.setattr(Client, "_burst", burst)
    client = Client("", {})
    if rate is None:
        with pytest.raises(RefusedError, match="not generated at the same time"):
            client.decode(2, 8, 16)
    else:
        assert client.decode(2, 8, 16) == pytest.approx(rate)
