"""The number of kept streams, in all and of each client, at its edges."""

from pathlib import Path
from typing import Any

import pytest

from gateway.streaming.resumable import StreamState
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.streaming.resuming import KEPT, Gateway, gateway, last_id, stream_id

pytestmark = pytest.mark.anyio

KEY = {"authorization": "Bearer secret"}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def resumed(served: Gateway, connection: Connection, **headers: str) -> Connection:
    """A connection that resumes a stream, with its status."""
    again = served.open("GET", f"/v1/streams/{stream_id(connection)}", **headers)
    await again.started()
    if again.status != 200:
        await again.ended.wait()
    return again


async def refused(served: Gateway, name: str, **headers: str) -> None:
    """One more stream is refused, and the error names the setting; ordinary ones are not."""
    answer = await served.ask("POST", "/v1/completions", KEPT, **headers)
    assert (answer.status, answer.error["code"]) == (429, "overloaded")
    assert f"({name})" in answer.error["message"]
    assert "retry-after" in answer.headers
    ordinary, _ = await served.begin(COMPLETION | {"stream": True}, **headers)
    assert ordinary.status == 200


async def test_a_stream_that_is_read_does_not_give_way() -> None:
    async with gateway(max_resumable_streams=2) as served:
        first, _ = await served.begin()
        second, _ = await served.begin()
        await refused(served, "max_resumable_streams")
        assert served.count(StreamState.READ) == 2
        assert first.status == second.status == 200


async def test_the_delivered_give_way_first_and_then_the_one_that_was_lost_first() -> None:
    async with gateway(max_resumable_streams=3) as served:
        begun = [await served.begin() for _ in range(3)]
        (late, _), (early, early_number), (whole, whole_number) = begun
        await early.leave()
        await late.leave()
        served.worker.finish(whole_number)
        await whole.ended.wait()
        await served.begin()
        assert (await resumed(served, whole)).error["code"] == "stream_dropped"
        assert served.worker.cancels == []
        await served.begin()
        gone = await resumed(served, early)
        assert (gone.status, gone.error["code"]) == (410, "stream_dropped")
        assert served.worker.cancels == [early_number]
        assert served.outcomes() == {"dropped": 1}
        again = await resumed(served, late)
        assert await again.until(1) == late.events
        await refused(served, "max_resumable_streams")


async def test_a_stream_that_is_resumed_is_young_again() -> None:
    async with gateway(max_resumable_streams=2) as served:
        first, _ = await served.begin()
        second, _ = await served.begin()
        await first.leave()
        await second.leave()
        again = await resumed(served, first)
        await again.leave()
        await served.begin()
        assert (await resumed(served, second)).status == 410
        assert (await resumed(served, first)).status == 200


async def test_a_client_over_its_share_loses_its_own_oldest_stream() -> None:
    async with gateway(max_resumable_streams=4, max_resumable_streams_per_key=2, api_key="secret") as served:
        first, _ = await served.begin(**KEY)
        await served.begin(**KEY)
        await refused(served, "max_resumable_streams_per_key", **KEY)
        await first.leave()
        await served.begin(**KEY)
        assert (await resumed(served, first, **KEY)).error["code"] == "stream_dropped"
        await refused(served, "max_resumable_streams_per_key", **KEY)


async def test_a_client_does_not_lose_a_stream_to_another_within_its_share(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("".join(f"{name}:key-of-{name}\n" for name in ("honest", "greedy", "third")))
    file.chmod(0o600)
    honest, greedy, third_key = ({"authorization": f"Bearer key-of-{name}"} for name in ("honest", "greedy", "third"))
    bounds = {"max_resumable_streams": 3, "max_resumable_streams_per_key": 2}
    async with gateway(**bounds, api_keys_file=str(file)) as served:
        kept, _ = await served.begin(**honest)
        await kept.leave()
        taken = [(await served.begin(**greedy))[0] for _ in range(2)]
        for connection in taken:
            await connection.leave()
        for _ in range(2):
            connection, _ = await served.begin(**greedy)
            await connection.leave()
        assert served.count(StreamState.DETACHED) == 3
        third, _ = await served.begin(**third_key)
        assert third.status == 200, "it takes a place of the client that has the most"
        assert (await resumed(served, kept, **honest)).status == 200


async def test_without_keys_there_are_no_shares() -> None:
    async with gateway(max_resumable_streams=3, max_resumable_streams_per_key=1) as served:
        for _ in range(3):
            connection, _ = await served.begin(**KEY)
            assert connection.status == 200


async def test_only_its_owner_learns_that_a_stream_was_dropped() -> None:
    async with gateway(max_resumable_streams=1) as served:
        first, _ = await served.begin(**KEY)
        await first.leave()
        await served.begin()
        assert (await resumed(served, first)).status == 404
        posted = await served.ask("POST", "/v1/completions", KEPT, last_event_id=last_id(first), **KEY)
        assert (posted.status, posted.error["code"]) == (410, "stream_dropped")
