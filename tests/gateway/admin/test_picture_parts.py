"""The parts of the picture that compute something, in a real browser: cells, sentences, and what is called equal."""

from typing import Any

import pytest

from tests.gateway.admin.browser import browsing, needs_browser
from tests.gateway.harness.serving import serving

pytestmark = [pytest.mark.anyio, needs_browser]

PLACES = """async (turns) => {
    const { Cells } = await import("/page/picture.js");
    const cells = new Cells();
    return turns.map(([ids, slots]) => [...cells.place(ids, slots)]);
}"""
HAPPENED = """async (turns) => {
    const { happenings } = await import("/page/live.js");
    return turns.map(([before, after]) => happenings(before, after));
}"""
RATES = """async (taken) => {
    const { Changes } = await import("/page/live.js");
    const changes = new Changes();
    return taken.map(([now, tokens]) => {
        const workers = Object.entries(tokens).map(([name, decode_tokens]) => ({ name, decode_tokens }));
        return changes.take({ workers, streams: [] }, now).rate;
    });
}"""
SHARES = "async (counts) => { const { shares } = await import('/page/load.js'); return counts.map(shares); }"
VERDICT = """async (ends) => {
    const { verdict } = await import("/page/load.js");
    return ends.map((each) => verdict(...each));
}"""


async def computed(script: str, given: Any) -> Any:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        return await page.evaluate(script, given)


async def test_a_stream_keeps_its_cell() -> None:
    turns = [[[1, 2, 3], 4], [[1, 3, 4, 5], 4], [[1, 3, 4, 5, 6, 7], 4], [[7, 6, 5], 4], [[], 4], [[8, 9], 0], [[9], 0]]
    assert await computed(PLACES, turns) == [
        [1, 2, 3, None],
        [1, 4, 3, 5],
        [1, 4, 3, 5, 6, 7],
        [None, None, None, 5, 6, 7],
        [None] * 4,
        [8, 9],
        [None, 9],
    ]


def snapshot(streams: dict[int, str | None], **states: str) -> dict[str, Any]:
    """A snapshot as far as sentences are made of it."""
    return {
        "workers": [
            {"name": name, "state": state, "incarnation": 1, "reason": "" if state == "ready" else "it was killed"}
            for name, state in states.items()
        ],
        "streams": [{"id": number, "worker": worker} for number, worker in streams.items()],
    }


async def test_what_happened_is_said() -> None:
    turns = [
        (snapshot({1: "w0"}, w0="ready"), snapshot({1: "w0", 2: None}, w0="ready")),
        (snapshot({}, w0="ready"), snapshot({}, w0="ready", w1="ready")),
        (
            snapshot({1: "w0", 2: "w0", 3: "w1"}, w0="ready", w1="ready"),
            snapshot({1: "w1", 2: "w1", 3: "w1"}, w0="backoff", w1="ready"),
        ),
        (snapshot({1: "w0"}, w0="ready"), snapshot({1: None}, w0="given_up")),
    ]
    assert await computed(HAPPENED, turns) == [
        [],
        ["Worker w1 is new."],
        ["Worker w0 has ended and is started again: it was killed.", "2 streams moved from w0 to w1."],
        ["Worker w0 was given up: it was killed.", "1 stream lost its worker and waits for another one."],
    ]


async def test_the_rate_is_that_of_the_last_seconds() -> None:
    """Also when a worker comes or goes, with all that it had generated."""
    taken = [[0, {"w0": 100}], [1, {"w0": 150}], [2, {"w0": 200, "w1": 9000}], [3, {"w0": 200}], [4, {"w0": 200}]]
    assert await computed(RATES, taken) == [0, 50, 50, 25, 0]


async def test_streams_are_shared_by_few_connections() -> None:
    assert await computed(SHARES, [1, 2, 3, 7, 64]) == [[1], [1, 1], [1, 1, 1], [2, 2, 3], [21, 21, 22]]


async def test_unequal_answers_are_not_called_equal() -> None:
    ends = [
        [{"complete": 1, "failed": 0}, 1, False],
        [{"complete": 4, "failed": 0}, 1, True],
        [{"complete": 3, "failed": 1}, 2, True],
    ]
    assert await computed(VERDICT, ends) == [
        "1 answer complete",
        "4 answers complete, all the same text.",
        "3 answers complete, 2 different texts; 1 failed.",
    ]
