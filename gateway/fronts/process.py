"""The process of a front, as the gateway sees it: its start, its link, its end."""

import asyncio
import functools
import os
from collections.abc import Callable

import anyio
import msgspec

from actors.process.child import ChildProcess
from actors.process.logs import forward_front
from actors.supervision.local import KEPT_FROM_WORKERS
from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from baton_serve.start import module_command
from gateway.fronts.frames import (
    CertificateRead,
    FrontPulse,
    FrontReady,
    InvalidHttpRefused,
    ToFront,
    ToGateway,
    decode_to_gateway,
)
from gateway.fronts.inbox import GATEWAY_FRAMES, FrameInbox
from gateway.fronts.outbox import FrameOutbox
from gateway.fronts.relayed import RelayedExchanges
from gateway.fronts.spec import FrontSpec

START_S = 60.0
"""Time until its first frame."""
SILENT_S = 10.0
"""Time without a frame after which a front is ended: it sends one each second."""
CHECK_S = 1.0
EXIT_S = 2.0
"""Time for an exit once its link has ended."""
TERM_S = 1.0
"""Time between SIGTERM and SIGKILL."""

FrontReport = FrontReady | FrontPulse | InvalidHttpRefused | CertificateRead
"""A report of a front about itself."""


class FrontProcess:
    """One process, from its start to its end. `run` owns it."""

    def __init__(
        self,
        spec: FrontSpec,
        exchanges: Callable[[FrameOutbox[ToFront]], RelayedExchanges],
        report: Callable[[FrontReport], None],
        turn_frames: int = GATEWAY_FRAMES,
    ) -> None:
        """`exchanges` makes the owner of its requests. `turn_frames` of its frames are handled in one turn of the event
        loop."""
        self._spec = spec
        self._report = report
        self._endpoint = LocalEndpoint()
        try:
            self._link = Link.bind(self._endpoint.address, self._received, on_lost=self._over)
        except BaseException:
            self._endpoint.remove()
            raise
        self._outbox: FrameOutbox[ToFront] = FrameOutbox(self._link)
        self._inbox: FrameInbox[ToGateway] = FrameInbox(self._take, turn_frames)
        self._exchanges = exchanges(self._outbox)
        self._child: ChildProcess | None = None
        self._exited = anyio.Event()
        self._reason = ""
        """Why it is at its end."""
        self._ended = anyio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._heard = False

    def send(self, frame: ToFront) -> None:
        """Send a frame, once it is connected."""
        self._outbox.put(frame)

    async def run(self) -> str:
        """Run it to its end, however that comes about. Returns the reason, in words. Raises `SpawnFailed`."""
        spec = msgspec.json.encode(self._spec).decode()
        command = module_command("gateway.fronts", "--endpoint", self._endpoint.address, "--spec", spec)
        env = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_WORKERS}
        sockets = [each for each in (self._spec.tcp, self._spec.unix, self._spec.counts) if each is not None]
        on_line = functools.partial(forward_front, front=self._spec.number)
        try:
            self._child = ChildProcess.spawn(command, on_line, self._on_exit, env, sockets)
            async with anyio.create_task_group() as group:
                group.start_soon(self._outbox.run)
                group.start_soon(self._watch)
                await self._ended.wait()
                group.cancel_scope.cancel()
        finally:
            self._exchanges.lose()
            self._inbox.close()
            self._link.close(0)
            self._endpoint.remove()
            if self._child is not None:
                self._child.end(EXIT_S if self._ended.is_set() else 0.0, TERM_S)
                with anyio.CancelScope(shield=True):  # bounded: see `ChildProcess.end`
                    await self._exited.wait()
        return f"it {self._child.describe_exit()} ({self._reason})"

    def _received(self, frames: list[bytes]) -> None:
        if not self._heard:
            pid = self._link.peer_pid
            if pid is not None and self._child is not None and not self._child.owns(pid):
                self._over(f"process {pid} connected, which was not started here")
                return
            self._heard = True
            self._endpoint.remove()
        self._heard_at = self._loop.time()
        for frame in frames:
            try:
                self._inbox.add(decode_to_gateway(frame))
            except msgspec.DecodeError as error:
                self._over(f"it sent an invalid message: {error}")

    def _take(self, frame: ToGateway) -> None:
        if isinstance(frame, FrontReport):
            self._report(frame)
        else:
            self._exchanges.take(frame)

    async def _watch(self) -> None:
        """Notice that it does not start, or hangs."""
        while True:
            await anyio.sleep(CHECK_S)
            if self._silent_s() > 0:
                self._link.drain_now()  # it is judged by what it has sent, also after a pause of this process
            if self._silent_s() > 0:
                self._over(f"it has sent nothing for {self._loop.time() - self._heard_at:.1f} s")

    def _silent_s(self) -> float:
        """Seconds for which it has been silent too long."""
        return self._loop.time() - self._heard_at - (SILENT_S if self._heard else START_S)

    def _over(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._ended.set()

    def _on_exit(self) -> None:
        self._exited.set()
        self._over("its process ended")
