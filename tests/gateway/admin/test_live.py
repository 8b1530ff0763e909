"""`/admin/live`: snapshots of the workers and of their streams, for a bounded number of watchers."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.admin.live import LIVE_PATH, MAX_STREAMS
from gateway.admin.watchers import MAX_WATCHERS
from protocol.events import Gauges
from tests.gateway.harness.serving import COMPLETION, Served, open_raw, serving

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def watched(served: Served, **headers: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    async with served.client.stream("GET", LIVE_PATH, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"

        async def snapshots() -> AsyncIterator[dict[str, Any]]:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

        yield snapshots()


async def test_a_snapshot_has_the_workers_and_the_place_of_each_stream() -> None:
    async with serving("w0", "w1", slots=2) as served:
        streams = [await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True}) for _ in range(3)]
        await served.until(lambda: served.live == 3)
        first = next(worker for worker in served.workers if worker.submits)
        first.token(first.submits[0].stream, "ab", 1, 2)
        first.change(gauges=Gauges(slots_active=1, decode_tokens=7, prefix_hits=2))
        async with watched(served) as snapshots:
            snapshot = await anext(snapshots)
        for stream in streams:
            await stream.aclose()
    assert [(each["name"], each["state"], each["slots"]) for each in snapshot["workers"]] == [
        ("w0", "ready", 2),
        ("w1", "ready", 2),
    ]
    assert sum(each["decode_tokens"] for each in snapshot["workers"]) == 7
    assert sum(each["prefix_hits"] for each in snapshot["workers"]) == 2
    assert snapshot["models"] == [{"name": "tiny", "waiting": 0}]
    assert len({each["id"] for each in snapshot["streams"]}) == 3
    assert sorted(each["worker"] for each in snapshot["streams"]) in (["w0", "w0", "w1"], ["w0", "w1", "w1"])
    assert sorted(each["tokens"] for each in snapshot["streams"]) == [0, 0, 2]
    assert snapshot["streams_left_out"] == 0


async def test_a_request_for_the_headers_alone_takes_no_place() -> None:
    async with serving() as served:
        for _ in range(MAX_WATCHERS + 1):
            refused = await served.client.head(LIVE_PATH)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        async with watched(served) as snapshots:
            assert (await anext(snapshots))["streams"] == []


async def test_a_stream_keeps_its_id_when_its_worker_is_lost() -> None:
    async with serving("w0", "w1") as served:
        stream = await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True})
        await served.until(lambda: served.live == 1)
        first = next(worker for worker in served.workers if worker.submits)
        async with watched(served) as snapshots:
            (before,) = (await anext(snapshots))["streams"]
            first.die()
            async for snapshot in snapshots:
                (after,) = snapshot["streams"]
                if after["worker"] not in (None, first.name):
                    break
        await stream.aclose()
    assert after["id"] == before["id"]
    assert (before["worker"], after["replayed"]) == (first.name, True)


async def _live(served: Served, count: int) -> None:
    await served.until(lambda: served.live == count)


async def test_only_the_ids_of_the_pages_requests_are_shown() -> None:
    async with serving() as served, anyio.create_task_group() as group:
        for count, name in enumerate(("page-0123", "user-4711"), 1):
            headers = {"x-request-id": name}
            group.start_soon(partial(served.client.post, "/v1/completions", json=COMPLETION, headers=headers))
            await _live(served, count)
        async with watched(served) as snapshots:
            snapshot = await anext(snapshots)
        group.cancel_scope.cancel()
    assert [each["request"] for each in snapshot["streams"]] == ["page-0123", None]


@pytest.mark.parametrize("over", [0, 1])
async def test_the_streams_of_a_snapshot_are_bounded(over: int) -> None:
    async with serving(slots=1024) as served:
        body = COMPLETION | {"prompt": ["hi"] * 64, "stream": True}
        streams = [await open_raw(served.port, "/v1/completions", body) for _ in range(MAX_STREAMS // 64)]
        if over:
            streams.append(await open_raw(served.port, "/v1/completions", COMPLETION | {"stream": True}))
        await served.until(lambda: served.live == MAX_STREAMS + over)
        async with watched(served) as snapshots:
            snapshot = await anext(snapshots)
        assert (len(snapshot["streams"]), snapshot["streams_left_out"]) == (MAX_STREAMS, over)
        for stream in streams:
            await stream.aclose()


async def test_a_further_watcher_takes_the_place_of_the_oldest_of_its_client() -> None:
    async with serving() as served, AsyncExitStack() as stack:
        first, *others = [await stack.enter_async_context(watched(served)) for _ in range(MAX_WATCHERS + 1)]
        for watcher in others:
            await anext(watcher)
        with anyio.fail_after(30):
            assert len([snapshot async for snapshot in first]) <= 2, "it has ended"
        assert (await anext(others[0]))["workers"]


async def test_watchers_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text("".join(f"client{number}:key-{number}\n" for number in range(MAX_WATCHERS + 1)))
    keys = [{"authorization": f"Bearer key-{number}"} for number in range(MAX_WATCHERS + 1)]
    async with serving(api_keys_file=str(file)) as served, AsyncExitStack() as stack:
        watchers = [await stack.enter_async_context(watched(served, **key)) for key in keys[1:]]
        for watcher in watchers:
            await anext(watcher)
        refused = await served.client.get(LIVE_PATH, headers=keys[0])
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert refused.headers["retry-after"] == "1"
        await stack.aclose()
        async with watched(served, **keys[0]) as snapshots:
            assert (await anext(snapshots))["workers"]


@pytest.mark.parametrize(
    ("headers", "watches"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "http://localhost:1"}, False),
        ({"origin": "null"}, False),
    ],
    ids=str,
)
async def test_a_page_of_another_origin_gets_no_place(headers: dict[str, str], watches: bool) -> None:
    """It could not read the snapshots anyway."""
    async with serving() as served:
        if watches:
            async with watched(served, **headers) as snapshots:
                assert (await anext(snapshots))["workers"]
        else:
            refused = await served.client.get(LIVE_PATH, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")


async def test_watchers_get_one_snapshot_between_them() -> None:
    """It is made once an interval, however many watch, and never while nobody does."""
    async with serving() as served:
        made = 0
        counted = served.router.metrics.replays

        def replays() -> int:
            nonlocal made
            made += 1
            return counted()

        served.router.metrics.replays = replays  # type: ignore[method-assign]
        assert made == 0
        async with AsyncExitStack() as stack:
            watchers = [await stack.enter_async_context(watched(served)) for _ in range(8)]
            for watcher in watchers:
                await anext(watcher)
            first = made
            assert 1 <= first < 8
        await served.until(lambda: served.listener.connections <= 1)
        before = made
        await served.client.get("/health")
        assert made == before


async def test_it_ends_when_the_gateway_drains() -> None:
    async with serving() as served, watched(served) as snapshots:
        await anext(snapshots)
        served.router.admission.drain_nowait()
        with anyio.fail_after(30):
            assert len([snapshot async for snapshot in snapshots]) <= 1


@pytest.mark.parametrize("key", ["", "wrong", "client", "admin"])
async def test_it_takes_a_key_if_there_are_keys(key: str) -> None:
    async with serving(api_key="client", admin_key="admin") as served:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        if key in ("client", "admin"):
            async with watched(served, **headers) as snapshots:
                assert (await anext(snapshots))["workers"]
        else:
            assert (await served.client.get(LIVE_PATH, headers=headers)).status_code == 401
