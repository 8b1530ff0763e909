"""Records of streams in Redis: one gateway has each, and what fails changes nothing for the streams."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from gateway.shared import stream_records
from gateway.shared.stream_records import GATEWAY, STREAM, StreamRecords
from gateway.streaming.moving.record_store import HeldElsewhere, RecordsUnreachable, RecordUnknown, StreamDemand
from tests.gateway.shared.test_limit_leases import needs_redis, redis_server

pytestmark = [pytest.mark.anyio, needs_redis]
ID, OWNER = "cmpl-0123", "digest"


class Gateway:
    """One gateway, whose streams are those that a test keeps."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.records = StreamRecords(url, name)
        self.demands: list[tuple[str, StreamDemand]] = []
        self.records.use(lambda stream_id, demand: self.demands.append((stream_id, demand)))

    async def exchange(self) -> None:
        await self.records.renew()
        await self.records.write()

    async def keep(self, stream_id: str = ID, resume_s: float = 60.0) -> None:
        assert self.records.keep(stream_id, OWNER, b"record", resume_s)
        assert not self.records.has(stream_id), "nothing waits for Redis"
        await self.exchange()
        assert self.records.has(stream_id)

    async def die(self) -> None:
        """Its last sign of life expires."""
        await self.records._redis.delete(GATEWAY + self.name)

    async def holder(self, stream_id: str = ID) -> bytes | str | None:
        return await self.records._redis.hget(STREAM + stream_id, "gateway")


@asynccontextmanager
async def gateways(folder: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    with redis_server(folder) as (url, _):
        one, two = Gateway(url, "one"), Gateway(url, "two")
        await one.exchange()
        await two.exchange()
        yield one, two
        await one.records.leave()
        await two.records.leave()


async def test_a_stream_of_a_dead_gateway_goes_to_exactly_one_other(tmp_path: Path) -> None:
    async with gateways(tmp_path) as (one, two):
        await one.keep()
        assert (one.records.count, two.records.count) == (1, 0)
        with pytest.raises(HeldElsewhere):
            await two.records.claim(ID, OWNER, ask=True)
        with pytest.raises(RecordUnknown):
            await two.records.claim(ID, "another", ask=True)
        with pytest.raises(RecordUnknown):
            await two.records.claim("cmpl-4567", OWNER, ask=True)
        await one.die()
        assert await two.records.claim(ID, OWNER, ask=True) == b"record"
        assert two.records.has(ID)
        one.records._stored.add("cmpl-4567")  # as after a restart of Redis
        one.records._kept["cmpl-4567"] = 1000
        await one.exchange()
        assert one.demands == [(ID, StreamDemand.TAKEN)], "the one that Redis has lost goes on"
        assert not one.records.has(ID)
        with pytest.raises(HeldElsewhere):
            await one.records.claim(ID, OWNER, ask=True)
        one.records.forget(ID)
        await one.exchange()
        assert await two.holder() == b"two", "it is another one's by now"


async def test_a_live_gateway_is_asked_for_a_stream_and_gives_it_up(tmp_path: Path) -> None:
    async with gateways(tmp_path) as (one, two):
        await one.keep()
        with pytest.raises(HeldElsewhere):
            await two.records.claim(ID, OWNER, ask=False)
        await one.exchange()
        assert one.demands == []
        with pytest.raises(HeldElsewhere):
            await two.records.claim(ID, OWNER, ask=True)
        await one.exchange()
        assert one.demands == [(ID, StreamDemand.MOVE)]
        one.records.release(ID)
        await one.exchange()
        assert one.demands == [(ID, StreamDemand.MOVE)]
        assert await two.records.claim(ID, OWNER, ask=True) == b"record"
        await two.exchange()
        assert two.demands == []


@pytest.mark.parametrize("alive", [True, False])
async def test_a_stream_is_cancelled_where_it_is(tmp_path: Path, alive: bool) -> None:
    async with gateways(tmp_path) as (one, two):
        await one.keep()
        with pytest.raises(RecordUnknown):
            await two.records.cancel(ID, "another")
        if not alive:
            await one.die()
        await two.records.cancel(ID, OWNER)
        if alive:
            await one.exchange()
            assert one.demands == [(ID, StreamDemand.CANCEL)]
            one.records.forget(ID)
            await one.exchange()
        assert await two.holder() is None
        with pytest.raises(RecordUnknown):
            await two.records.cancel(ID, OWNER)


@pytest.mark.parametrize("after", ["it lives", "it stops", "it dies"])
async def test_a_cancel_that_was_not_read_holds_whatever_is_asked_then(tmp_path: Path, after: str) -> None:
    async with gateways(tmp_path) as (one, two):
        await one.keep()
        await two.records.cancel(ID, OWNER)
        with pytest.raises(RecordUnknown):
            await two.records.claim(ID, OWNER, ask=True)
        if after == "it lives":
            await one.exchange()
            assert one.demands == [(ID, StreamDemand.CANCEL)]
            return
        if after == "it stops":
            one.records.release(ID)
            await one.records.write()
            assert await two.holder() is None
        else:
            await one.die()
        with pytest.raises(RecordUnknown):
            await two.records.claim(ID, OWNER, ask=True)


async def test_a_record_is_kept_as_long_as_its_gateway_lives_and_then_for_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_records, "MARGIN_S", 0.0)
    async with gateways(tmp_path) as (one, _):
        await one.keep(resume_s=30.0)
        redis, key = one.records._redis, STREAM + ID
        await redis.pexpire(key, 500)
        await one.exchange()
        assert 29_000 < await redis.pttl(key) <= 30_000
        assert 1_000 < await redis.pttl(GATEWAY + "one") <= 2_000


async def test_a_gateway_that_stops_leaves_its_streams_at_once(tmp_path: Path) -> None:
    async with gateways(tmp_path) as (one, two):
        async with anyio.create_task_group() as group:
            group.start_soon(one.records.run)
            assert one.records.keep(ID, OWNER, b"record", 60.0)
            while not one.records.has(ID):  # noqa: ASYNC110  another process is waited for
                await anyio.sleep(0.005)
            group.cancel_scope.cancel()
        assert await two.records.claim(ID, OWNER, ask=True) == b"record"


async def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateways(tmp_path) as (one, _):
        records = one.records
        monkeypatch.setattr(stream_records, "MAX_RECORDS", 2)
        assert [records.keep(f"cmpl-{number}", OWNER, b"r", 1.0) for number in range(3)] == [True, True, False]
        records.forget("cmpl-0")
        assert records.keep("cmpl-3", OWNER, b"r", 1.0)
        await one.exchange()
        assert records.count == 2
        assert await one.holder("cmpl-0") is None
        monkeypatch.setattr(stream_records, "MAX_RECORDS", 100)
        monkeypatch.setattr(stream_records, "MAX_QUEUED_BYTES", 10)
        assert [records.keep(f"cmpl-{size}", OWNER, b"r" * size, 1.0) for size in (11, 10, 1)] == [False, True, False]
        await one.exchange()
        assert records.keep("cmpl-1", OWNER, b"r", 1.0), "there is room again"
        monkeypatch.setattr(stream_records, "MAX_QUEUED", 1)
        assert not records.keep("cmpl-4", OWNER, b"r", 1.0)


async def test_what_others_have_written_does_not_break_it(tmp_path: Path) -> None:
    async with gateways(tmp_path) as (one, two):
        await one.keep()
        redis = one.records._redis
        await redis.hset(STREAM + ID, "demand", "nonsense")
        await one.exchange()
        assert one.demands == []
        await redis.set(STREAM + "cmpl-1", "a text")
        with pytest.raises(RecordsUnreachable, match="WRONGTYPE"):
            await two.records.claim("cmpl-1", OWNER, ask=True)


@pytest.mark.parametrize("how", ["gone", "slow"])
async def test_without_redis_streams_stay_with_their_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(stream_records, "TIMEOUT_S", 0.05)
    with redis_server(tmp_path) as (url, process), capture_logs() as logged:
        one = Gateway(url, "one")
        await one.exchange()
        await one.keep("cmpl-0")
        process.send_signal(signal.SIGKILL if how == "gone" else signal.SIGSTOP)
        assert one.records.keep(ID, OWNER, b"record", 60.0)
        await one.records.write()
        assert not one.records.has(ID)
        assert not one.records.keep("cmpl-1", OWNER, b"record", 60.0), "known to be of no use"
        with pytest.raises(RecordsUnreachable):
            await one.records.claim(ID, OWNER, ask=True)
        with pytest.raises(RecordsUnreachable):
            await one.records.cancel(ID, OWNER)
        await one.exchange()
        assert (one.records.has("cmpl-0"), one.records.count) == (False, 0)
        if how == "slow":
            process.send_signal(signal.SIGCONT)
            monkeypatch.setattr(stream_records, "TIMEOUT_S", 30.0)
            await one.exchange()
            await one.keep("cmpl-2")
            assert one.records.has("cmpl-0")
            assert await one.holder() is None, "what it may have stored, too late"
        await one.records.leave()
        events = [line["event"] for line in logged]
        assert events == ["streams_shared", "streams_not_shared"] + ["streams_shared"] * (how == "slow")


async def test_a_stream_is_not_claimed_while_its_end_here_waits(tmp_path: Path) -> None:
    async with gateways(tmp_path) as (one, two):
        await one.keep()
        one.records.release(ID)
        with pytest.raises(HeldElsewhere):
            await one.records.claim(ID, OWNER, ask=True)
        await one.exchange()
        assert await one.records.claim(ID, OWNER, ask=True) == b"record"
        await one.exchange()
        assert one.demands == [], "nobody else has it"
        assert await two.holder() == b"one"


async def test_a_claim_whose_answer_was_lost_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server(tmp_path) as (url, process):
        one, two = Gateway(url, "one"), Gateway(url, "two")
        await two.exchange()
        await one.keep()
        await one.die()
        await two.records._redis.ping()
        monkeypatch.setattr(stream_records, "TIMEOUT_S", 0.05)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(RecordsUnreachable):
            await two.records.claim(ID, OWNER, ask=True)
        process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(stream_records, "TIMEOUT_S", 30.0)
        while await one.holder() != b"two":  # noqa: ASYNC110  another process is waited for
            await anyio.sleep(0.005)
        await two.exchange()
        assert await one.records.claim(ID, OWNER, ask=True) == b"record"
        await one.records.leave()
        await two.records.leave()


async def test_what_waits_delays_neither_signs_of_life_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as (url, process):
        one = Gateway(url, "one")
        await one.exchange()
        for number in range(10 * stream_records.BATCH):
            assert one.records.keep(f"cmpl-{number}", OWNER, b"record", 60.0)
        await one.records.write(0.0)
        assert len(one.records._stored) == stream_records.BATCH, "the time has come after the first ones"
        monkeypatch.setattr(stream_records, "TIMEOUT_S", 0.05)
        process.send_signal(signal.SIGSTOP)
        await one.records.write()
        assert len(one.records._queue) == 8 * stream_records.BATCH, "the others wait until Redis answers"
        await one.records.leave()
        assert len(one.records._queue) == 7 * stream_records.BATCH, "it asks once more"
