"""How a run with a kill is held against the undisturbed one."""

import dataclasses

import pytest

from bench.chaos import Stream, Trigger, bodies, compare


def stream(**changes: object) -> Stream:
    whole = Stream("ab", [1, 2], [0.0, 1.0], "length", [3, 2], "", True)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        pytest.param({}, (0, 0, 0), id="same"),
        pytest.param({"done": False}, (1, 0, 0), id="no end"),
        pytest.param({"finish": ""}, (1, 0, 0), id="no reason"),
        pytest.param({"ids": [1, 1, 2]}, (0, 1, 0), id="a token twice"),
        pytest.param({"ids": [1, 3]}, (0, 0, 1), id="another token"),
        pytest.param({"ids": [1]}, (0, 0, 1), id="a token less"),
        pytest.param({"text": "ac"}, (0, 0, 1), id="another character"),
        pytest.param({"usage": [3, 1]}, (0, 0, 1), id="another count"),
    ],
)
def test_what_is_counted(changes: dict[str, object], counts: tuple[int, int, int]) -> None:
    line = compare("1", "middle", [stream(), stream(**changes)], 0.5, [stream(), stream()])
    assert (line.failed, line.duplicated, line.altered) == counts
    assert line.bad == sum(counts)


def test_a_gap_is_longer_than_any_without_a_kill() -> None:
    cut, smooth, late, over = ([0.0, 0.1, 2.1], [0.0, 0.9], [5.0, 9.0], [0.0, 0.1])
    streams = [stream(stamps=stamps) for stamps in (cut, smooth, late, over)]
    line = compare("1", "middle", streams, 0.5, [stream()] * 4)
    assert (line.cut, line.gap_p50_ms, line.undisturbed_ms) == (1, 2000.0, 1000.0)


@pytest.mark.parametrize(("phase", "tokens"), [("admitted", 0), ("first", 1), ("middle", 100), ("last", 158)])
def test_the_moment_of_a_kill(phase: str, tokens: int) -> None:
    trigger = Trigger(phase, 100, 160, pid=0)
    assert trigger.reached([stream(ids=[]), stream(ids=[1] * tokens)])
    assert not tokens or not trigger.reached([stream(ids=[1] * (tokens - 1))])


def test_no_two_requests_are_alike() -> None:
    asked = bodies(64, 8, 10)
    assert len({str(request) for request in asked}) == 64
    assert {path for path, _ in asked} == {"/v1/completions", "/v1/chat/completions"}
    assert {body["temperature"] for _, body in asked} == {0.0, 0.9}
