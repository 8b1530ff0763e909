"""Partitions between a gateway and its remote workers, shorter and longer than the time after which a link counts as
lost, in both directions or one, while a worker joins, loads, streams, drains or is to cancel."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from actors.supervision.worker import WorkerState
from actors.transport.allow_list import AllowList
from actors.transport.keys import make_key
from bench.networks.byte_link import ByteLink
from bench.networks.impairment import Impairment
from tests.gateway.harness.real import gather, launch
from tests.gateway.harness.traffic import ask as operate
from tests.gateway.networks.linked import IMPATIENT, LONG, RATE, linked, linked_by_packets

pytestmark = pytest.mark.anyio


async def test_a_partition_shorter_than_the_detection_delays_streams_and_a_reset_moves_them(tmp_path: Path) -> None:
    async with linked(tmp_path, launch("near", rate=RATE)) as made, anyio.create_task_group() as group:
        reference = await made.ask()
        with made.joining():
            await made.door.ready("far")

            async def interrupt() -> None:
                made.link.interrupt()
                await anyio.sleep(0.5)
                made.link.heal()

            def soon() -> None:
                group.start_soon(interrupt)

            assert await made.ask_both(soon) == [reference] * 2
            assert (made.door.status("far").incarnation, made.door.status("far").restarts) == (1, 0)
            assert isinstance(made.link, ByteLink)
            assert await made.ask_both(made.link.reset) == [reference] * 2
            await made.door.ready("far", 2)


async def test_a_longer_interruption_moves_streams_once_and_the_old_incarnation_says_no_more(tmp_path: Path) -> None:
    """Frames that the worker makes meanwhile, and sends when the link is healed, reach no stream. If only commands are
    held back, its frames still come: a stream that it has ends there, and one that it never got is moved as from a
    worker that hangs. Frames that come a byte at a time are no sign of life."""
    async with linked(tmp_path, launch("near", rate=RATE), deadlines=IMPATIENT) as made:
        assert isinstance(made.link, ByteLink)
        link = made.link
        interruptions: list[Callable[[], None]] = [
            link.interrupt,
            partial(link.interrupt, to_gateway=False),
            partial(link.drip, 0.1, to_worker=False),
        ]
        resumed = {"killed": 0, "died": 0}
        reference = await made.ask()
        with made.joining():
            for before, interrupt in enumerate(interruptions, 1):
                incarnation = (await made.door.ready("far", before)).incarnation
                assert await made.ask_both(interrupt) == [reference] * 2
                one_way = made.door.status("far").state is WorkerState.READY
                if one_way:
                    assert await gather(made.ask, made.ask) == [reference] * 2
                assert made.door.status("far").state is not WorkerState.READY
                made.taken.clear()
                link.heal()
                link.drip(0.0)
                await made.door.ready("far", incarnation + 1)
                assert ("far", incarnation) not in made.taken
                resumed["died" if one_way else "killed"] += 1
                metrics = (await made.door.real.client.get("/metrics")).text
                for cause, count in resumed.items():
                    line = f'baton_replays_total{{cause="{cause}",model="tiny",outcome="resumed"}}'
                    assert f"{line} {count}.0" in metrics or not count
                assert await made.ask_both() == [reference] * 2
            assert resumed == {"killed": 2, "died": 1}


async def test_a_partition_of_packets_in_one_direction_is_one_in_both(tmp_path: Path) -> None:
    """Without acknowledgements TCP sends nothing new. The end of the connection is lost as well: the worker learns of
    it by its own deadline, or when the link is healed."""
    near = launch("near", rate=RATE)
    async with linked_by_packets(tmp_path, near, impairment=Impairment(), deadlines=IMPATIENT) as made:
        reference = await made.ask()
        with made.joining():
            await made.door.ready("far")
            interrupt = partial(made.link.interrupt, to_gateway=False)
            assert await made.ask_both(interrupt) == [reference] * 2
            made.taken.clear()
            made.link.heal()
            await made.door.ready("far", 2)
            assert ("far", 1) not in made.taken
            metrics = (await made.door.real.client.get("/metrics")).text
            assert 'baton_replays_total{cause="killed",model="tiny",outcome="resumed"} 1.0' in metrics


async def test_a_worker_that_is_out_of_reach_while_it_joins_or_loads_serves_when_it_is_healed(tmp_path: Path) -> None:
    """A load goes on during a partition. The worker keeps what it has loaded, and joins with it."""
    async with linked(tmp_path, deadlines=IMPATIENT) as made:
        made.link.interrupt()
        assert isinstance(made.link, ByteLink)
        said, members = made.link.said, made.door.real.fleet.members
        with made.joining(load_seconds=1.0):
            await made.door.real.until(lambda: bool(said))
            assert "far" not in members
            made.link.heal()
            await made.door.real.until(lambda: "far" in members and made.door.status("far").hello is not None)
            made.link.interrupt()
            await made.door.real.until(lambda: made.door.status("far").state is WorkerState.BACKOFF)
            made.link.heal()
            await made.door.ready("far", 2)
            assert len(await made.ask()) == LONG["max_tokens"]


async def test_a_drain_during_a_partition_ends_and_moves_the_streams(tmp_path: Path) -> None:
    async with linked(tmp_path, launch("near", rate=RATE), deadlines=IMPATIENT) as made:
        reference = await made.ask()
        real = made.door.real
        done: list[str] = []
        with made.joining():
            await made.door.ready("far")
            async with anyio.create_task_group() as group:

                async def drain() -> None:
                    done.append(str((await operate(real, "/admin/workers/far/drain", grace_s=0.1))["outcome"]))

                def interrupt() -> None:
                    made.link.interrupt()
                    group.start_soon(drain)

                assert await made.ask_both(interrupt) == [reference] * 2
            assert done == ["done"]
            made.link.heal()
            await real.until(lambda: made.door.rejected().get("taken", 0) > 0)
            assert made.door.status("far").state is WorkerState.STOPPED


async def test_the_slots_of_streams_that_were_cancelled_during_a_partition_become_free(tmp_path: Path) -> None:
    """The cancels arrive when it is healed. If it was longer than the detection, the worker cancels by itself what the
    lost link had brought, before it joins again."""
    async with linked(tmp_path, deadlines=IMPATIENT) as made:
        real = made.door.real
        with made.joining():
            for incarnation in (1, 2):
                await made.door.ready("far")
                async with real.client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 4000}) as answer:
                    await anext(answer.aiter_lines())
                    made.link.interrupt()
                await real.until(lambda: not real.router.pool["far"].live)
                if incarnation == 2:
                    await real.until(lambda: made.door.status("far").state is WorkerState.BACKOFF)
                made.link.heal()
                await made.door.ready("far", incarnation)
                await real.until(lambda: made.door.status("far").gauges.slots_active == 0)
            assert len(await made.ask()) == LONG["max_tokens"]


async def test_keys_are_enforced(tmp_path: Path) -> None:
    """A worker with an unknown key is refused as often as it tries, and disturbs nobody. Recorded bytes of a join are
    of no use, as the gateway makes new keys for each connection. And a worker whose key was revoked during a partition
    does not come back."""
    async with linked(tmp_path, deadlines=IMPATIENT) as made:
        assert isinstance(made.link, ByteLink)
        make_key(made.door.file("unknown"))
        with made.joining():
            await made.door.ready("far")
            recorded = bytes(made.link.said[0])
            with made.joining("unknown"):
                await made.door.real.until(lambda: made.door.rejected().get("key", 0) > 1)
                assert len(await made.ask()) == LONG["max_tokens"]
            assert (made.door.status("far").incarnation, list(made.door.real.fleet.members)) == (1, ["far"])
            joins = made.door.joins._joins
            assert joins is not None
            await made.door.real.until(lambda: len(joins._connections) == 1)
            refused = made.door.rejected()
            made.link.interrupt()
            await made.door.real.until(lambda: made.door.status("far").state is WorkerState.BACKOFF)
            async with await anyio.connect_tcp("127.0.0.1", made.door.joins.port) as thief:
                await thief.send(recorded)
                async for _ in thief:
                    pass  # until the gateway closes it
            assert made.door.rejected() == refused | {"handshake": refused.get("handshake", 0) + 1}
            allowed = AllowList(made.door.folder)
            allowed.add("other", make_key(tmp_path / "other.key").public_text)
            allowed.remove("far")
            made.link.heal()
            await made.door.real.until(lambda: made.door.rejected()["key"] > refused["key"])
            assert (made.door.status("far").state, made.door.status("far").incarnation) == (WorkerState.BACKOFF, 1)
