"""Records of resumable streams in Redis, by which another gateway continues those of one that is gone.

A hash for each stream has its owner's digest, the name of the gateway that has it, and its record. A key for each
gateway says that it is alive; it expires. One script makes a gateway the one that has a stream, so that no two take it
over. What a gateway writes goes through one task, in order, and nothing waits for it.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple, cast

import anyio
import structlog
from redis.exceptions import RedisError

from gateway.shared.redis_client import TIMEOUT_S, open_client
from gateway.streaming.moving.record_store import (
    HeldElsewhere,
    OnDemand,
    RecordsUnreachable,
    RecordUnknown,
    StreamDemand,
)

PERIOD_S = 0.5
"""Time between two signs of life."""
LEASE_S = 2.0
"""Time after its last sign of life at which a gateway is taken for dead."""
MARGIN_S = 60.0
"""Seconds beyond its `resume_s` for which a record is kept without a sign of life of its gateway."""
MAX_RECORDS = 1024
"""Streams of this gateway with a record; further ones have none."""
MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""Bytes of records that are yet to be sent; further streams have none."""
MAX_QUEUED = 4096
"""Writes that are yet to be sent. What is deleted beyond them expires."""
BATCH = 64
"""Writes that are sent at once."""
CLAIMS = 8
"""Requests of clients that ask at once; others wait for them."""
STREAM = "baton:stream:"
GATEWAY = "baton:gateway:"

_RENEW = """
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
local found = {}
for index = 4, #ARGV, 2 do
  local key = ARGV[3] .. ARGV[index]
  local stream = redis.call('HMGET', key, 'gateway', 'demand')
  if stream[1] == ARGV[1] then
    redis.call('PEXPIRE', key, ARGV[index + 1])
  end
  if stream[1] ~= ARGV[1] or stream[2] then
    table.insert(found, ARGV[index])
    table.insert(found, stream[1] == ARGV[1] and stream[2] or stream[1] and 'taken' or 'lost')
  end
end
return found
"""
_CLAIM = """
local stream = redis.call('HMGET', KEYS[1], 'owner', 'gateway', 'record', 'resume_ms', 'demand')
if not stream[3] or stream[1] ~= ARGV[2] or stream[5] == 'cancel' then
  return {'unknown'}
end
if stream[2] ~= '' and stream[2] ~= ARGV[1] and redis.call('EXISTS', ARGV[3] .. stream[2]) == 1 then
  if ARGV[4] == 'ask' then
    redis.call('HSET', KEYS[1], 'demand', 'move')
  end
  return {'held'}
end
redis.call('HSET', KEYS[1], 'gateway', ARGV[1])
redis.call('HDEL', KEYS[1], 'demand')
redis.call('PEXPIRE', KEYS[1], stream[4])
return {'taken', stream[3], stream[4]}
"""
_CANCEL = """
local stream = redis.call('HMGET', KEYS[1], 'owner', 'gateway')
if not stream[1] or stream[1] ~= ARGV[1] then
  return 'unknown'
end
if stream[2] ~= '' and redis.call('EXISTS', ARGV[2] .. stream[2]) == 1 then
  redis.call('HSET', KEYS[1], 'demand', 'cancel')
else
  redis.call('DEL', KEYS[1])
end
return 'done'
"""
_FORGET = "if redis.call('HGET', KEYS[1], 'gateway') == ARGV[1] then redis.call('DEL', KEYS[1]) end"
_RELEASE = """
local stream = redis.call('HMGET', KEYS[1], 'gateway', 'demand')
if stream[1] ~= ARGV[1] then
  return
end
if stream[2] == 'cancel' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'gateway', '')
  redis.call('HDEL', KEYS[1], 'demand')
end
"""

_DEMANDS = {each.value: each for each in StreamDemand}

_log = structlog.get_logger("gateway.shared.stream_records")


class _Write(NamedTuple):
    """A write that waits."""

    stream_id: str
    commands: Sequence[tuple[str | bytes | int, ...]]
    size: int = 0
    """Bytes of the record; 0 for another write than that of a record."""


class StreamRecords:
    """Implements `gateway.streaming.moving.record_store.RecordStore`."""

    def __init__(self, url: str, gateway: str) -> None:
        """`url` as Redis' own clients write it; `gateway` is a name that no other gateway has. Raises `ValueError` for
        a URL that they do not take."""
        self._gateway = gateway
        self._redis = open_client(url)
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._unsent: Counter[str] = Counter()
        """Writes about each stream that wait, or are on their way."""
        self._wake = anyio.Event()
        self._kept: dict[str, int] = {}
        """The milliseconds for which the record of each stream is kept without a sign of life."""
        self._stored: set[str] = set()
        """Those that Redis has."""
        self._doubtful: dict[str, str] = {}
        """Streams that Redis may have given to this gateway although it did not answer, `MAX_QUEUED` at most: the
        script that ends this when it answers."""
        self._claims = asyncio.Semaphore(CLAIMS)
        self._on_demand: OnDemand = lambda stream_id, demand: None
        self._answers: bool | None = None
        """Redis has answered last time; None before the first."""

    @property
    def count(self) -> int:
        """The streams of this gateway that others can continue."""
        return len(self._stored) if self._answers else 0

    def use(self, on_demand: OnDemand) -> None:
        self._on_demand = on_demand

    def keep(self, stream_id: str, owner: str, record: bytes, resume_s: float) -> bool:
        full = len(self._kept) >= MAX_RECORDS or self._queued_bytes + len(record) > MAX_QUEUED_BYTES
        if full or self._answers is False or len(self._queue) >= MAX_QUEUED:
            return False
        self._kept[stream_id] = kept_ms = round((resume_s + MARGIN_S) * 1000)
        fields = ("owner", owner, "gateway", self._gateway, "resume_ms", kept_ms, "record", record)
        key = STREAM + stream_id
        self._put(_Write(stream_id, [("HSET", key, *fields), ("PEXPIRE", key, kept_ms)], len(record)))
        return True

    def has(self, stream_id: str) -> bool:
        return self._answers is True and stream_id in self._stored

    def forget(self, stream_id: str) -> None:
        self._end(stream_id, _FORGET)

    def release(self, stream_id: str) -> None:
        self._end(stream_id, _RELEASE)

    def _end(self, stream_id: str, script: str) -> None:
        self._stored.discard(stream_id)
        if self._kept.pop(stream_id, None) is not None and len(self._queue) < MAX_QUEUED:
            self._put(_Write(stream_id, [("EVAL", script, 1, STREAM + stream_id, self._gateway)]))

    def _put(self, write: _Write) -> None:
        self._queue.append(write)
        self._queued_bytes += write.size
        self._unsent[write.stream_id] += 1
        self._wake.set()

    def _doubt(self, stream_id: str, script: str) -> None:
        if len(self._doubtful) < MAX_QUEUED:
            self._doubtful[stream_id] = script

    async def claim(self, stream_id: str, owner: str, *, ask: bool) -> bytes:
        if stream_id in self._unsent:
            raise HeldElsewhere  # its last claim ends first, or that end would be the end of this one
        end = self._doubtful.pop(stream_id, _RELEASE)
        try:
            answer = await self._ask(_CLAIM, stream_id, self._gateway, owner, GATEWAY, "ask" if ask else "")
        except (RecordsUnreachable, asyncio.CancelledError):
            self._doubt(stream_id, end)
            raise
        match answer:
            case [b"taken", bytes(record), bytes(kept_ms)]:
                self._kept[stream_id] = int(kept_ms)
                self._stored.add(stream_id)
                return record
            case [b"held"]:
                raise HeldElsewhere
        raise RecordUnknown

    async def cancel(self, stream_id: str, owner: str) -> None:
        if await self._ask(_CANCEL, stream_id, owner, GATEWAY) != b"done":
            raise RecordUnknown

    async def _ask(self, script: str, stream_id: str, *arguments: str) -> object:
        """Run a script about one stream. Raises `RecordsUnreachable`."""
        async with self._claims:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    call = self._redis.eval(script, 1, STREAM + stream_id, *arguments)
                    return await cast(Awaitable[object], call)
            except (RedisError, OSError, TimeoutError) as error:
                raise RecordsUnreachable(f"{type(error).__name__}: {error}") from error

    async def run(self) -> None:
        """Write what is kept, and give signs of life, until cancelled; then say goodbye."""
        due = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                if loop.time() >= due:
                    due = loop.time() + PERIOD_S
                    await self.renew()
                await self.write(due)
                with anyio.move_on_after(due - loop.time()):
                    await self._wake.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await self.leave()

    async def renew(self) -> None:
        """Give one sign of life, and learn what other gateways ask for."""
        arguments = [self._gateway, str(round(LEASE_S * 1000)), STREAM]
        for stream_id in self._stored:
            arguments += (stream_id, str(self._kept[stream_id]))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                call = self._redis.eval(_RENEW, 1, GATEWAY + self._gateway, *arguments)
                found = [each.decode() for each in await cast(Awaitable[list[bytes]], call)]
        except (RedisError, OSError, TimeoutError) as error:
            self._note(error)
            return
        self._note(None)
        for stream_id in tuple(islice(self._doubtful, max(0, MAX_QUEUED - len(self._queue)))):
            script = self._doubtful.pop(stream_id)
            if stream_id not in self._kept:
                self._put(_Write(stream_id, [("EVAL", script, 1, STREAM + stream_id, self._gateway)]))
        for stream_id, demand in zip(found[::2], found[1::2], strict=True):
            if demand in ("taken", "lost"):  # by Redis: the stream goes on here
                self._kept.pop(stream_id, None)
                self._stored.discard(stream_id)
            if demand in _DEMANDS:
                self._on_demand(stream_id, _DEMANDS[demand])

    async def write(self, until: float = math.inf) -> None:
        """Send what waits, to the end, or until this time, or until Redis fails to take some of it. That is dropped:
        these streams end with this gateway."""
        self._wake = anyio.Event()
        while self._queue:
            if not await self._write_batch() or asyncio.get_running_loop().time() >= until:
                return

    async def _write_batch(self) -> bool:
        """False if Redis did not take it."""
        batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
        self._queued_bytes -= sum(each.size for each in batch)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                pipeline = self._redis.pipeline(transaction=False)
                for command in chain.from_iterable(each.commands for each in batch):
                    pipeline.execute_command(*command)
                await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            self._note(error)
            for write in batch:
                if write.size and self._kept.pop(write.stream_id, None) is not None:
                    self._doubt(write.stream_id, _FORGET)
            return False
        finally:
            self._unsent -= Counter(each.stream_id for each in batch)
        self._stored.update(each.stream_id for each in batch if each.size and each.stream_id in self._kept)
        return True

    def _note(self, error: Exception | None) -> None:
        """Log when Redis begins or ceases to answer."""
        answered, self._answers = self._answers, error is None
        if error is not None and answered is not False:
            _log.warning("streams_not_shared", reason=f"{type(error).__name__}: {error}")
        elif error is None and not answered:
            _log.info("streams_shared")

    async def leave(self) -> None:
        """Write what waits, let the other gateways have all streams, if Redis answers, and close the connections."""
        await self.write(asyncio.get_running_loop().time() + PERIOD_S)
        with suppress(RedisError, OSError, TimeoutError):  # they expire
            async with asyncio.timeout(TIMEOUT_S):
                await self._redis.delete(GATEWAY + self._gateway)
        await self._redis.aclose()
