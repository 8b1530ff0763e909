"""A gateway and a remote worker with an emulated network between them, and what the tests do with the two."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.supervision.deadlines import Deadlines
from bench.networks.byte_link import ByteLink
from bench.networks.impairment import Impairment
from bench.networks.packet_link import GATEWAY, NoNamespaces, PacketLink
from gateway.fleet.launch import WorkerLaunch
from protocol.events import Event
from tests.gateway.fleet.remote import Doorway, doorway, joining
from tests.gateway.harness.serving import COMPLETION, choices

LONG = COMPLETION | {"seed": 7, "max_tokens": 40, "ignore_eos": True, "stream": True}
RATE = 100.0
PATIENT = Deadlines()
IMPATIENT = Deadlines(hang=2.5, idle=2.5, heartbeat=2.5, stop=0.5)
"""A lost link is noticed after 2.5 s."""


@dataclass
class Linked:
    """A gateway and its link."""

    door: Doorway
    link: ByteLink | PacketLink
    taken: list[tuple[str, int]] = field(default_factory=list)
    """The worker and the incarnation of each event that reached the router."""

    @contextmanager
    def joining(self, name: str = "far", **fields: Any) -> Iterator[None]:
        """A worker whose supervisor connects over the link, with the key in the file of this name."""
        port = self.link.port if isinstance(self.link, ByteLink) else self.door.joins.port
        host = "127.0.0.1" if isinstance(self.link, ByteLink) else GATEWAY
        address, given = f"tcp://{host}:{port}", {"tokens_per_second": RATE} | fields
        worker = joining(self.door.file(name), (address, self.door.key), **given)
        if isinstance(self.link, PacketLink):
            self.link.worker.run(worker.__enter__)
        else:
            worker.__enter__()
        try:
            yield
        finally:
            worker.__exit__(None, None, None)

    async def ask(self, fifth: Callable[[], None] = lambda: None, event: int = 5, **fields: Any) -> list[int]:
        """The token ids of a stream, which must end well and once. `fifth` is called at its fifth event, or another
        `event`."""
        found = await choices(self.door.real.client, LONG | {"return_token_ids": True} | fields, fifth, event)
        return [token for choice in found for token in choice["token_ids"]]

    async def ask_both(self, fifth: Callable[[], None] = lambda: None) -> list[list[int]]:
        """The tokens of two streams, of which each worker has one; the one that "far" has calls `fifth`."""
        found: list[list[int]] = []
        live = self.door.real.router.pool["far"].live

        def on_far() -> None:
            if len(live) and not called:
                called.append(True)
                fifth()

        async def one() -> None:
            found.append(await self.ask(on_far))

        called: list[bool] = []
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        return found


@asynccontextmanager
async def linked(
    folder: Path, *launches: WorkerLaunch, deadlines: Deadlines = PATIENT, impairment: Impairment | None = None
) -> AsyncIterator[Linked]:
    """A gateway, and a link through which "far" may join as bytes."""
    async with doorway(folder, *launches, deadlines=deadlines) as door, ByteLink(door.joins.port, impairment) as link:
        yield _watched(Linked(door, link))


@asynccontextmanager
async def linked_over_packets(
    folder: Path, *launches: WorkerLaunch, deadlines: Deadlines = PATIENT, impairment: Impairment
) -> AsyncIterator[Linked]:
    """The same with the TCP of the kernel over a packet link. Raises `NoNamespaces`."""
    with PacketLink(impairment) as link:
        async with doorway(folder, *launches, deadlines=deadlines, host=GATEWAY, listen=link.gateway.run) as door:
            yield _watched(Linked(door, link))


@asynccontextmanager
async def linked_by_packets(*arguments: Any, **fields: Any) -> AsyncIterator[Linked]:
    """The same. Skips the test where the system has no namespaces."""
    made = linked_over_packets(*arguments, **fields)
    try:
        entered = await made.__aenter__()
    except NoNamespaces as error:
        pytest.skip(str(error))
    try:
        yield entered
    finally:
        await made.__aexit__(*sys.exc_info())


def _watched(linked: Linked) -> Linked:
    router = linked.door.real.router
    take = router.worker_event

    def note(worker: str, incarnation: int, event: Event) -> None:
        linked.taken.append((worker, incarnation))
        take(worker, incarnation, event)

    router.worker_event = note  # type: ignore[method-assign]  # a spy
    return linked
