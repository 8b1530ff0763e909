"""Two apps, each over a fake worker of its own, that share records without a Redis."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.app import create_app
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.moving.record_store import (
    HeldElsewhere,
    OnDemand,
    RecordsUnreachable,
    RecordUnknown,
    StreamDemand,
)
from gateway.streaming.peer import PeerGateway
from gateway.streaming.resumable import ResumableStreams
from tests.gateway.harness.asgi import Clients, clients
from tests.gateway.harness.fakes import FakeWorker


class Shared:
    """The content of a Redis: owner, gateway and record of each stream."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[str, str, bytes]] = {}
        self.demands: dict[str, StreamDemand] = {}
        self.alive: set[str] = set()
        self.reachable = True


class SharedRecords:
    """Implements `gateway.streaming.moving.record_store.RecordStore`."""

    def __init__(self, shared: Shared, name: str) -> None:
        self._shared = shared
        self._name = name
        self.room = True

    def use(self, on_demand: OnDemand) -> None:
        self.on_demand = on_demand

    def keep(self, stream_id: str, owner: str, record: bytes, resume_s: float) -> bool:
        if self.room:
            self._shared.records[stream_id] = owner, self._name, record
        return self.room

    def has(self, stream_id: str) -> bool:
        return self._shared.records.get(stream_id, ("", "", b""))[1] == self._name

    def forget(self, stream_id: str) -> None:
        if self.has(stream_id):
            del self._shared.records[stream_id]

    def release(self, stream_id: str) -> None:
        if self.has(stream_id):
            owner, _, record = self._shared.records[stream_id]
            self._shared.records[stream_id] = owner, "", record

    async def claim(self, stream_id: str, owner: str, *, ask: bool) -> bytes:
        found_owner, holder, record = self._find(stream_id, owner)
        if holder in self._shared.alive - {self._name}:
            if ask:
                self._shared.demands[stream_id] = StreamDemand.MOVE
            raise HeldElsewhere
        self._shared.records[stream_id] = found_owner, self._name, record
        return record

    async def cancel(self, stream_id: str, owner: str) -> None:
        _, holder, _ = self._find(stream_id, owner)
        if holder in self._shared.alive:
            self._shared.demands[stream_id] = StreamDemand.CANCEL
        else:
            del self._shared.records[stream_id]

    def _find(self, stream_id: str, owner: str) -> tuple[str, str, bytes]:
        if not self._shared.reachable:
            raise RecordsUnreachable("it does not answer")
        found = self._shared.records.get(stream_id)
        if found is None or found[0] != owner:
            raise RecordUnknown
        return found

    def renew(self) -> None:
        """Do what others have asked for."""
        for stream_id in [each for each in self._shared.demands if self.has(each)]:
            self.on_demand(stream_id, self._shared.demands.pop(stream_id))


class Gateway:
    """One of them."""

    def __init__(
        self,
        name: str,
        shared: Shared,
        made: Clients,
        router: Router,
        worker: FakeWorker,
        records: SharedRecords,
        streams: ResumableStreams,
    ) -> None:
        self.records = records
        self.streams = streams
        self.open = made.open
        self.ask = made.ask
        self.app = made.app
        self.name = name
        self.router = router
        self.worker = worker
        self._shared = shared

    def die(self) -> None:
        """Others take it for dead. What it has under way goes on, unnoticed."""
        self._shared.alive.discard(self.name)


@asynccontextmanager
async def gateway(name: str, shared: Shared, peer: PeerGateway | None = None, **chosen: Any) -> AsyncIterator[Gateway]:
    settings = GatewaySettings(**chosen)
    router = Router(settings)
    worker = FakeWorker(slots=64, context=4096).join(router)
    records = SharedRecords(shared, name)
    shared.alive.add(name)
    streams = ResumableStreams(settings, router.metrics, records)
    async with clients(create_app(router, settings, streams=streams, peer=peer, records=records)) as opened:
        yield Gateway(name, shared, opened, router, worker, records, streams)


@asynccontextmanager
async def two_gateways(**chosen: Any) -> AsyncIterator[tuple[Gateway, Gateway, Shared]]:
    shared = Shared()
    async with gateway("one", shared, **chosen) as one, gateway("two", shared, **chosen) as two:
        yield one, two, shared
