"""A worker's reports of failing steps, loads and text code, over a real link."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from protocol.commands import Drain, Stop, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import Failed, Finished, Hello, Ready
from tests.workers.process.harness.gateway_peer import Peer, run_scenario, scripted, service, submit
from workers.faults.plan import Fault, raising
from workers.load_options import Progress
from workers.process.exit_codes import EXIT_CODES
from workers.process.loading import Loaded, load
from workers.process.service import WorkerService
from workers.process.spec import WorkerSpec
from workers.text.byte_tokenizer import ByteTokenizer


def test_a_failed_step_fails_only_its_requests() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send(submit(1, max_tokens=5))
        failed = await peer.terminal(1)
        assert isinstance(failed, Failed)
        assert failed.code is ErrorCode.STEP
        peer.send(submit(2, max_tokens=5))
        assert isinstance(await peer.terminal(2), Finished)

    run_scenario(scenario, faults=raising((1,)))


def test_ten_failed_steps_in_a_row_end_the_worker() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.ready()
        peer.send(*(submit(stream, max_tokens=5) for stream in range(12)))
        bye = await peer.bye()
        assert (bye.reason, bye.text) == (ByeReason.STEPS_FAILED, "10 engine steps in a row failed")
        codes = [(await peer.terminal(stream)).code for stream in range(12)]  # type: ignore[union-attr]
        assert codes == [ErrorCode.STEP] * 10 + [ErrorCode.DRAINING] * 2
        assert await peer.exit_code() == EXIT_CODES[ByeReason.STEPS_FAILED]

    run_scenario(scenario, max_batch_size=1, faults=raising(tuple(range(1, 100))))


def test_a_failed_load_reports_its_reason() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.expect(Hello)
        peer.send(Welcome(1))
        bye = await peer.bye()
        assert bye.reason is ByeReason.LOAD_FAILED
        assert bye.text
        assert await peer.exit_code() == EXIT_CODES[ByeReason.LOAD_FAILED]

    run_scenario(scenario, faults=(Fault("fail_load"),))


def test_a_missing_model_directory(tmp_path: Path) -> None:
    async def scenario(peer: Peer) -> None:
        hello = await peer.expect(Hello)
        assert (hello.context, hello.device) == (0, "unknown")
        peer.send(Welcome(1))
        bye = await peer.bye()
        assert (bye.reason, "nowhere" in bye.text) == (ByeReason.LOAD_REFUSED, True)

    run_scenario(scenario, backend="iree", model_path=str(tmp_path / "nowhere"))


def test_a_request_before_ready_is_refused() -> None:
    async def scenario(peer: Peer) -> None:
        await peer.expect(Hello)
        peer.send(Welcome(1), submit(1))
        failed = await peer.terminal(1)
        assert isinstance(failed, Failed)
        assert failed.code is ErrorCode.UNAVAILABLE
        peer.send(Drain(60_000))
        await peer.bye()
        assert not any(isinstance(frame, Ready) for frame in peer.frames)

    run_scenario(scenario, load_seconds=1.0)


class Panic(BaseException):
    """Like Rust code's, which is no `Exception`."""


class Broken(ByteTokenizer):
    """A tokenizer with a bug: it cannot encode "!", and cannot decode what follows "?"."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def encode(self, text: str, *, special: bool) -> list[int]:
        if "!" in text:
            raise self._error("a bug")
        return [0x3F] if "?" in text else super().encode(text, special=special)

    def piece(self, token: int, *, first: bool = False) -> bytes:
        if first:
            raise self._error("a bug")
        return b"" if token == 0x3F else super().piece(token, first=first)


def broken(error: type[BaseException]) -> Callable[[WorkerSpec, Progress], Loaded]:
    """Return a load of a worker whose tokenizer is `Broken`."""

    def broken_load(spec: WorkerSpec, progress: Progress) -> Loaded:
        loaded = load(spec, progress)
        return Loaded(loaded.engine, Broken(error), loaded.context)

    return broken_load


def test_a_load_error_with_a_lone_surrogate_is_sent() -> None:
    def broken_load(spec: WorkerSpec, progress: Progress) -> Loaded:
        progress("weights of \udcff", 0, 1)
        raise ValueError("no tensor \udcff")

    async def run() -> None:
        async with service(scripted(), broken_load) as peer:
            await peer.expect(Hello)
            peer.send(Welcome(1))
            bye = await peer.bye()
            assert (bye.reason, bye.text) == (ByeReason.LOAD_FAILED, "no tensor ?")

    with structlog.testing.capture_logs():
        asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "error", "logged"),
    [("!", ValueError, "admission_failed"), ("!", Panic, "admission_failed"), ("?", ValueError, "text_failed")],
)
def test_a_bug_in_text_code_ends_one_request(prompt: str, error: type[BaseException], logged: str) -> None:
    async def run() -> None:
        async with service(scripted(max_batch_size=2), broken(error)) as peer:
            await peer.ready()
            peer.send(submit(1, "neighbour", max_tokens=40), submit(2, prompt), submit(3, "next", max_tokens=2))
            failed = await peer.terminal(2)
            assert isinstance(failed, Failed)
            assert failed.code is ErrorCode.INTERNAL
            assert isinstance(await peer.terminal(1), Finished)
            assert isinstance(await peer.terminal(3), Finished)
            await peer.until(lambda: peer.gauges().slots_active == 0)
            peer.send(Stop())
            assert (await peer.bye()).reason is ByeReason.STOPPED

    with structlog.testing.capture_logs() as logs:
        asyncio.run(run())
    assert logged in {line["event"] for line in logs}


def test_an_uncontained_bug_ends_the_worker_with_a_reason() -> None:
    async def run() -> None:
        async with service(scripted(), broken(Panic)) as peer:
            await peer.ready()
            peer.send(submit(1, "?"))
            failed = await peer.terminal(1)
            assert isinstance(failed, Failed)
            assert failed.code is ErrorCode.LOST
            assert (await peer.bye()).reason is ByeReason.INTERNAL
            assert await peer.exit_code() == EXIT_CODES[ByeReason.INTERNAL]

    with structlog.testing.capture_logs() as logs:
        asyncio.run(run())
    assert "callback_failed" in {line["event"] for line in logs}


def test_a_worker_that_exits_before_hello_sends_nothing() -> None:
    async def run() -> None:
        with LocalEndpoint() as endpoint:
            peer = Peer()
            peer.attach(Link.bind(endpoint.address, peer.on_message, on_lost=peer.on_lost))
            hasty = WorkerService(scripted(), endpoint.address, 1)
            left = await hasty.run(lambda: hasty.leave(ByeReason.STOPPED, "at once"))
            assert (left.reason, left.stuck, peer.frames) == (ByeReason.STOPPED, False, [])
            peer.detach()

    asyncio.run(run())
