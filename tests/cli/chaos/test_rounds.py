"""Rounds: the moment of the fault, and the comparison with the undisturbed round."""

from dataclasses import replace
from typing import Any

import pytest

from cli.chaos.rounds import ClientImpact, FaultTrigger, compare, percentile, run_round
from cli.chaos.transcript import ChoiceTranscript, Transcript
from tests.cli.chaos.interrupted_server import REQUEST, interrupted_server


@pytest.mark.anyio
async def test_the_fault_comes_when_all_requests_were_sent_and_one_has_its_tokens() -> None:
    async with interrupted_server() as server:
        received: list[int] = []

        def inject() -> None:
            received.append(len(server.heads))
            server.resume.set()

        streams, at = await run_round(server.address, [REQUEST] * 3, FaultTrigger(1, inject))
        assert at is not None
        assert received == [3]
        assert [stream.violation(1) for stream in streams] == ["", "", ""]
        assert [stream.request_id for stream in streams] == ["r7"] * 3
        assert all(stream.stamps[0] <= at or stream.stamps[-1] > at for stream in streams)
        assert b"Authorization: Bearer secret" in server.heads[0]


@pytest.mark.anyio
async def test_without_a_server_every_stream_fails() -> None:
    async with interrupted_server() as server:
        gone = replace(server.address, port=1)
    streams, _ = await run_round(gone, [REQUEST] * 2, FaultTrigger(5, lambda: None))
    assert [stream.errors[0][0] for stream in streams] == ["connection", "connection"]


def stream(choice: ChoiceTranscript | None = None, **changes: Any) -> Transcript:
    choices = {0: choice or ChoiceTranscript("ab", [1, 2], ["stop"])}
    whole = Transcript(200, choices, {"a"}, [(3, 2)], ends=1, stamps=[0.0, 1.0])
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        pytest.param(stream(), (0, 0, 0), id="same"),
        pytest.param(stream(ends=0), (1, 0, 0), id="no end"),
        pytest.param(stream(errors=[("x", "y")]), (1, 0, 0), id="an error"),
        pytest.param(stream(ChoiceTranscript("ab", [1, 1, 2], ["stop"])), (0, 1, 0), id="a token twice"),
        pytest.param(stream(ChoiceTranscript("ab", [1, 3], ["stop"])), (0, 0, 1), id="another token"),
        pytest.param(stream(ChoiceTranscript("ab", [1], ["stop"])), (0, 0, 1), id="a missing token"),
        pytest.param(stream(ChoiceTranscript("ac", [1, 2], ["stop"])), (0, 0, 1), id="another character"),
        pytest.param(stream(usages=[(3, 1)]), (0, 0, 1), id="another count"),
    ],
)
def test_every_difference_is_counted(other: Transcript, counts: tuple[int, int, int]) -> None:
    impact = compare([REQUEST, REQUEST], [stream(), other], 0.5, [stream(), stream()])
    assert (impact.failed, impact.duplicated, impact.altered) == counts
    assert impact.bad == sum(counts)
    assert bool(impact.problem) == bool(counts[0])


def test_a_gap_is_longer_than_any_without_a_fault() -> None:
    interrupted, smooth, late = [0.0, 0.1, 2.1], [0.0, 0.9], [5.0, 9.0]
    streams = [stream(stamps=stamps) for stamps in (interrupted, smooth, late)]
    impact = compare([REQUEST] * 3, streams, 0.5, [stream()] * 3)
    assert impact.gaps_s == (2.0,)
    assert impact.undisturbed_s == 1.0


def test_rounds_add_up() -> None:
    both = ClientImpact(1, 0, 0, 0, (0.1,), 0.5) + ClientImpact(2, 1, 1, 1, (0.2,), 0.3, "no")
    assert both == ClientImpact(3, 1, 1, 1, (0.1, 0.2), 0.5, "no")


def test_percentiles() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (51.0, 100.0, None)
