"""A worker, in a process or not, and the gateway's end of its link, for tests."""

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from baton_serve.start import module_command
from protocol.codec import decode_event, encode
from protocol.commands import Command, Submit, Welcome
from protocol.events import Bye, Event, Failed, Finished, Gauges, Heartbeat, Hello, Ready, Step
from protocol.request import Input, Limits, Sampling, TextInput
from workers.load_options import Progress
from workers.process.loading import Loaded, load
from workers.process.service import WorkerService
from workers.process.spec import ScriptedSpec, WorkerSpec

E = TypeVar("E", bound=Event)
Load = Callable[[WorkerSpec, Progress], Loaded]

PATIENCE_S = 100.0
"""Far more than anything takes, on a busy machine too."""


SLOW: dict[str, Any] = {"tokens_per_second": 50.0}


class GoneEarly(Exception):
    """Raised when the process exits before it sends what the test waits for."""


class Peer:
    """Plays the gateway for one worker: keeps every frame it receives, and waits for the expected ones."""

    process: asyncio.subprocess.Process
    """Only of a worker that has a process of its own."""

    def __init__(self) -> None:
        self.exited = False
        self.ending: asyncio.Future[int] | None = None
        self.frames: list[Event] = []
        self.messages: list[list[Event]] = []
        self.lost: str | None = None
        self._news = asyncio.Event()
        self._link: Link | None = None

    def detach(self) -> None:
        """Close the gateway's end, like a gateway that dies."""
        assert self._link is not None
        self._link.close(0.0)
        self._news.set()

    def attach(self, link: Link) -> None:
        self._link = link

    def on_message(self, frames: list[bytes]) -> None:
        events = [decode_event(frame) for frame in frames]
        self.messages.append(events)
        self.frames.extend(events)
        self._news.set()

    def on_lost(self, reason: str) -> None:
        self.lost = reason
        self._news.set()

    def send(self, *commands: Command) -> None:
        self.send_bytes([encode(command) for command in commands])

    def send_bytes(self, frames: Sequence[bytes]) -> None:
        assert self._link is not None
        self._link.send_nowait(frames)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                if self.exited:
                    raise GoneEarly
                self._news.clear()
                await self._news.wait()

    async def expect(self, kind: type[E], where: Callable[[E], bool] = lambda _: True) -> E:
        """Wait for a frame of this kind that matches, and return it."""
        found: list[E] = []

        def look() -> bool:
            found.extend(frame for frame in self.frames if isinstance(frame, kind) and where(frame))
            return bool(found)

        await self.until(look)
        return found[0]

    async def terminal(self, stream: int) -> Finished | Failed:
        kinds = (Finished, Failed)
        await self.until(lambda: any(isinstance(f, kinds) and f.stream == stream for f in self.frames))
        (frame,) = [f for f in self.frames if isinstance(f, kinds) and f.stream == stream]
        return frame

    async def ready(self) -> Ready:
        hello = await self.expect(Hello)
        self.send(Welcome(hello.incarnation))
        return await self.expect(Ready)

    async def bye(self) -> Bye:
        return await self.expect(Bye)

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            assert self.ending is not None
            return await asyncio.shield(self.ending)

    async def watch(self, ending: Awaitable[int]) -> int:
        """Wait for the worker's exit and its last frames, which come later. Returns its exit code."""
        try:
            return await ending
        finally:
            assert self._link is not None
            async with asyncio.timeout(PATIENCE_S):
                while self._link.received and not self._link.closed:
                    self._news.clear()
                    await self._news.wait()
            self.exited = True
            self._news.set()

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def steps(self) -> list[Step]:
        return [frame for frame in self.frames if isinstance(frame, Step)]

    def gauges(self) -> Gauges:
        """The latest gauges."""
        return next(frame.gauges for frame in reversed(self.frames) if isinstance(frame, Step | Heartbeat))

    def tokens(self, stream: int) -> list[int]:
        return [token for step in self.steps() for d in step.deltas if d.stream == stream for token in d.tokens]

    def text(self, stream: int) -> str:
        pieces = [d.text for step in self.steps() for d in step.deltas if d.stream == stream]
        tails = [frame.text for frame in self.frames if isinstance(frame, Finished) and frame.stream == stream]
        return "".join(pieces + tails)


Scenario = Callable[[Peer], Coroutine[Any, Any, None]]


def scripted(**fields: Any) -> WorkerSpec:
    """Return the specification of a scripted worker. Fields of `ScriptedSpec` may be given, too."""
    script = {name: fields.pop(name) for name in list(fields) if name in ScriptedSpec.__struct_fields__}
    defaults = {"name": "w0", "model_name": "scripted", "model_path": "", "backend": "scripted"}
    return WorkerSpec(**{**defaults, **fields}, scripted=ScriptedSpec(**script))


def submit(stream: int, source: Input | str = "hello", **limits: Any) -> Submit:
    given = TextInput(source) if isinstance(source, str) else source
    resume = limits.pop("resume", ())
    return Submit(stream, f"request-{stream}", given, limits.pop("sampling", Sampling()), Limits(**limits), resume)


def command(endpoint: str, spec: WorkerSpec | str, incarnation: int = 1) -> list[str]:
    text = spec if isinstance(spec, str) else msgspec.json.encode(spec).decode()
    arguments = ["--endpoint", endpoint, "--incarnation", str(incarnation), "--spec", text]
    return module_command("workers", *arguments)


@contextlib.asynccontextmanager
async def worker(spec: WorkerSpec) -> AsyncIterator[Peer]:
    """Start a process, and end it afterwards. A test that times out shows what the worker logged."""
    with LocalEndpoint() as endpoint, tempfile.TemporaryFile() as log:
        peer = Peer()
        peer.attach(Link.bind(endpoint.address, peer.on_message, on_lost=peer.on_lost))
        arguments = command(endpoint.address, spec)
        peer.process = await asyncio.create_subprocess_exec(*arguments, stdin=subprocess.PIPE, stderr=log)
        peer.ending = asyncio.create_task(peer.watch(peer.process.wait()))
        try:
            yield peer
        except (TimeoutError, GoneEarly) as error:
            log.seek(0)
            raise AssertionError(f"waited in vain; the worker said:\n{log.read().decode()}") from error
        finally:
            peer.detach()
            if peer.process.returncode is None:
                peer.process.kill()
            await peer.ending


@contextlib.asynccontextmanager
async def service(spec: WorkerSpec, load: Load = load) -> AsyncIterator[Peer]:
    """Run the same worker in this process: on the test's event loop, with an engine thread."""
    with LocalEndpoint() as endpoint:
        peer = Peer()
        peer.attach(Link.bind(endpoint.address, peer.on_message, on_lost=peer.on_lost))

        async def run() -> int:
            return (await WorkerService(spec, endpoint.address, 1, load=load).run()).exit_code

        peer.ending = asyncio.create_task(peer.watch(run()))
        try:
            yield peer
        finally:
            peer.detach()
            await peer.ending


def run_scenario(scenario: Scenario, *, process: bool = False, **spec: Any) -> None:
    """Run a scenario with its own worker: a real process, or one in this process, which starts faster."""

    async def run() -> None:
        async with (worker if process else service)(scripted(**spec)) as peer:
            await scenario(peer)

    with structlog.testing.capture_logs():
        asyncio.run(run())


def with_worker(process: bool = False, **spec: Any) -> Callable[[Scenario], Callable[[], None]]:
    """Make a test of a scenario; see `run_scenario`."""

    def wrap(scenario: Scenario) -> Callable[[], None]:
        def test() -> None:
            run_scenario(scenario, process=process, **spec)

        test.__doc__ = scenario.__doc__
        return test

    return wrap
