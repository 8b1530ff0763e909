"""Exits of a worker: drained, stopped, refused, orphaned, or after an invalid frame."""

import pytest

from protocol.codec import encode
from protocol.commands import Drain, Stop, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import Failed, Finished, Gauges, Heartbeat, Hello
from tests.workers.process.harness.gateway_peer import SLOW, Peer, run_scenario, submit
from workers.process.exit_codes import EXIT_CODES


def test_drain_finishes_running_requests_and_admits_none() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send(submit(1, max_tokens=10))
        await peer.until(lambda: peer.tokens(1))
        peer.send(Drain(60_000), submit(2))
        refused = await peer.terminal(2)
        assert isinstance(refused, Failed)
        assert refused.code is ErrorCode.DRAINING
        assert isinstance(await peer.terminal(1), Finished)
        assert (await peer.bye()).reason is ByeReason.STOPPED
        assert await peer.exit_code() == 0

    run_scenario(scenario, **SLOW)


def test_a_drain_with_nothing_live_leaves_at_once() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send(Drain(60_000))
        await peer.bye()
        assert await peer.exit_code() == 0

    run_scenario(scenario)


def test_the_grace_of_a_drain_is_a_bound() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send(submit(1))
        await peer.until(lambda: peer.tokens(1))
        peer.send(Drain(100))
        failed = await peer.terminal(1)
        assert isinstance(failed, Failed)
        assert failed.code is ErrorCode.DRAINING
        assert (await peer.bye()).reason is ByeReason.STOPPED

    run_scenario(scenario, **SLOW)


def test_stop_fails_running_requests() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send(submit(1), submit(2))
        await peer.until(lambda: peer.tokens(1))
        peer.send(Stop())
        assert [getattr(await peer.terminal(stream), "code", None) for stream in (1, 2)] == [ErrorCode.DRAINING] * 2
        assert (await peer.bye()).reason is ByeReason.STOPPED
        assert await peer.exit_code() == 0

    run_scenario(scenario, **SLOW)


def test_a_lost_link_ends_the_worker() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.detach()
        assert await peer.exit_code() == EXIT_CODES[ByeReason.ORPHANED]

    run_scenario(scenario)


def test_a_refused_worker_leaves() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.expect(Hello)
        peer.send(Welcome(1, "protocol version 1 is not 2"))
        bye = await peer.bye()
        assert (bye.reason, bye.text) == (ByeReason.REFUSED, "protocol version 1 is not 2")
        assert await peer.exit_code() == EXIT_CODES[ByeReason.REFUSED]

    run_scenario(scenario)


def test_a_welcome_for_another_incarnation_refuses_the_worker() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.expect(Hello)
        peer.send(Welcome(2))
        assert (await peer.bye()).reason is ByeReason.REFUSED

    run_scenario(scenario)


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"\xc1garbage"], id="garbage"),
        pytest.param([encode(submit(1)), b""], id="after-a-request"),
        pytest.param([encode(Heartbeat(Gauges()))], id="an-event"),
        pytest.param([encode(Welcome(1))], id="welcome-again"),
        pytest.param([encode(submit(5)), encode(submit(5))], id="same-stream"),
    ],
)
def test_an_invalid_frame_ends_the_worker(frames: list[bytes]) -> None:
    """A client may wait for the request in that frame; it is notified only if the worker is lost."""

    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send_bytes(frames)
        assert (await peer.bye()).reason is ByeReason.PROTOCOL
        assert await peer.exit_code() == EXIT_CODES[ByeReason.PROTOCOL]
        streams = [frame.stream for frame in peer.frames if isinstance(frame, Failed)]
        assert len(streams) == len(set(streams))

    run_scenario(scenario, **SLOW)
