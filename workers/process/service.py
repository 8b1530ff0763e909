"""Worker side of the protocol, on the event loop: takes commands, sends frames, and decides when the worker exits."""

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import psutil
import structlog
from msgspec.structs import replace

from actors.transport.link import LinkClosed
from protocol.bounds import MAX_MILLISECONDS, MAX_NAME, clip
from protocol.codec import decode_command, encode
from protocol.commands import (
    Cancel,
    Command,
    Drain,
    LoadAdapter,
    ReadRows,
    Stop,
    Submit,
    Tokenize,
    UnloadAdapter,
    Welcome,
    WriteRows,
)
from protocol.errors import ByeReason, ErrorCode, ProtocolError
from protocol.events import (
    HEARTBEAT_S,
    AdapterChanged,
    Bye,
    Event,
    Failed,
    Gauges,
    Heartbeat,
    Loading,
    Ready,
    Rows,
    RowsWritten,
)
from workers.faults.faulty_link import connect
from workers.host.loop_calls import LoopCalls
from workers.load_options import Progress
from workers.process.engine_thread import EngineThread
from workers.process.exit_codes import WorkerExit
from workers.process.loading import Loaded, load
from workers.process.open_requests import Effects, OpenRequests
from workers.process.outbox import Outbox
from workers.process.prompts.prompt_query import failed_query
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import Described, describe, hello
from workers.process.startup.served_capabilities import served_capabilities

WELCOME_S = 30.0
"""Time for the gateway to answer `Hello`."""
FLUSH_S = 1.0
"""Time for the last frames to be sent."""
JOIN_S = 2.0
"""Time for the engine thread to return from the device."""
NOT_ATTRIBUTED = frozenset({ByeReason.STOPPED, ByeReason.STEPS_FAILED})
"""Reasons to exit that are not attributed to the open requests: those of a failed step have failed with it."""


class WorkerService:
    """One worker from `Hello` to `Bye`. Everything runs on the loop's thread except the `EngineThread` that it owns."""

    def __init__(
        self,
        spec: WorkerSpec,
        endpoint: str,
        incarnation: int,
        *,
        load: Callable[[WorkerSpec, Progress], Loaded] = load,
        join_s: float = JOIN_S,
    ) -> None:
        self._spec = spec.of_incarnation(incarnation)
        self._incarnation = incarnation
        self._endpoint = endpoint
        self._load = load
        self._join_s = join_s
        self._log = structlog.get_logger().bind(worker=spec.name, model=spec.model_name)
        self._hello_sent = False
        self._welcomed = anyio.Event()
        self._loaded = anyio.Event()
        self._load_began = 0.0
        self._draining = False
        self._reason: ByeReason | None = None
        self._requests: OpenRequests | None = None
        """None until the model is loaded."""
        self._process = psutil.Process()

    async def run(self, on_started: Callable[[], None] = lambda: None) -> WorkerExit:
        """Connect, load, serve and exit. `on_started` is called once `leave_threadsafe` may be called.

        Raises `actors.transport.endpoint.EndpointError` for an invalid address.
        """
        self._loop = asyncio.get_running_loop()
        self._left = anyio.Event()
        self._link = connect(self._endpoint, self._on_message, self._on_lost, self._spec.faults)
        self._outbox = Outbox(self._link, self.engine_output_ready)
        self._calls = LoopCalls(self._loop)
        self._engine = EngineThread(self._load_model, self, self._calls.call_soon)
        self._loop.add_signal_handler(signal.SIGTERM, self.leave, ByeReason.STOPPED, "it was terminated")
        self._loop.set_exception_handler(self._on_internal_error)
        on_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_hello)
            tasks.start_soon(self._outbox.run)
            tasks.start_soon(self._build_prompts)
            tasks.start_soon(self._change_adapters)
            tasks.start_soon(self._send_heartbeats)
            await self._left.wait()
            tasks.cancel_scope.cancel()
        return await self._close()

    def leave(self, reason: ByeReason, text: str) -> None:
        """Fail open requests, send `Bye`, and make `run` return. Only the first call has an effect."""
        if self._reason is not None:
            return
        self._reason = reason
        self._log.info("worker_leaves", reason=reason.value, text=text)
        code = ErrorCode.DRAINING if reason in NOT_ATTRIBUTED else ErrorCode.LOST
        frames: list[Event] = []
        if self._requests is not None:
            frames.extend(self._requests.fail_all(code, clip(f"the worker left: {text}")))
            self._requests.disarm()
        if self._hello_sent:
            self._outbox.send_nowait([*frames, Bye(reason, clip(text))])
        self._engine.stop()
        self._left.set()

    def leave_threadsafe(self, reason: ByeReason, text: str) -> None:
        """Call `leave` from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has left already
            self._loop.call_soon_threadsafe(self.leave, reason, text)

    def engine_progress(self, phase: str, done: int, total: int) -> None:
        """Report the progress of the load. See `EngineListener`."""
        if self._reason is None:
            self._outbox.send_nowait([Loading(clip(phase, MAX_NAME), done, total)])

    def engine_loaded(self, loaded: Loaded) -> None:
        """Report `Ready` and accept requests. See `EngineListener`."""
        if self._reason is not None:
            return
        self._requests = OpenRequests(
            loaded,
            # A stopped sequence counts until the engine has removed it: hence twice the slots.
            max_live=2 * self._spec.max_batch_size + self._spec.max_queue,
            loop=self._loop,
            log=self._log,
            on_admission=self._carry_out,
            on_expired=self._expire,
        )
        self._loaded.set()
        load_ms = round((self._loop.time() - self._load_began) * 1000)
        device = clip(loaded.engine.capabilities.device, MAX_NAME)
        step_ms = min(math.ceil(loaded.step_s * 1000), MAX_MILLISECONDS)
        ready = Ready(
            served_capabilities(loaded, embeddings=self._spec.embeddings),
            load_ms,
            device,
            step_ms,
            loaded.engine.kv_capacity,
            loaded.memory_bytes,
            rows_format=clip(loaded.engine.rows_format, MAX_NAME),
            row_bytes=loaded.engine.capabilities.row_bytes,
            tier=loaded.engine.shared_tier,
            adapters=loaded.engine.capabilities.adapters,
            adapter_places=loaded.engine.capabilities.adapter_places,
        )
        self._outbox.send_nowait([ready])
        # The gateway logs `worker_ready` at level info.
        self._log.debug("model_loaded", load_ms=load_ms, context=loaded.context, device=device, step_ms=step_ms)

    def engine_output_ready(self) -> None:
        """Send the engine's outputs. Not while the link has no room, which makes the engine wait at its own bound."""
        if self._requests is None or self._reason is not None or self._outbox.blocked:
            return
        effects = self._requests.process(self._engine.take_outputs())
        if effects.inputs:
            self._engine.post(effects.inputs)
        self._outbox.send_nowait(effects.frames)
        self._leave_if_drained()

    def engine_down(self, reason: ByeReason, text: str) -> None:
        """Send the last outputs and exit. See `EngineListener`."""
        self.engine_output_ready()
        self.leave(reason, text)

    async def _send_hello(self) -> None:
        """Send `Hello` and wait for the gateway's `Welcome`, which starts the load."""
        try:
            described, problem = await anyio.to_thread.run_sync(describe, self._spec), ""
            # The load takes the same, though other memory may be free by then.
            self._spec = replace(self._spec, context=described.context)
        except Exception as error:  # noqa: BLE001  the load will fail for the same reason, and reports it to the gateway
            described, problem = Described(self._spec.backend, "unknown", 0, 0, "", "", ""), str(error)
        self._log.debug("worker_greets", problem=problem)
        try:
            with anyio.fail_after(WELCOME_S):
                await self._link.send([encode(hello(self._spec, described, self._incarnation))])
                self._hello_sent = True
                await self._welcomed.wait()
        except TimeoutError:
            self.leave(ByeReason.ORPHANED, f"no gateway answered within {WELCOME_S:g} s")
        except LinkClosed:
            return  # `_on_lost` is called with the reason

    def _load_model(self, progress: Progress) -> Loaded:
        return self._load(self._spec, progress)

    async def _build_prompts(self) -> None:
        await self._loaded.wait()
        assert self._requests is not None
        try:
            await self._requests.run()
        except Exception as error:  # noqa: BLE001  as for a callback: clients are notified only if the worker exits
            self._on_internal_error(self._loop, {"message": "the tokenize queue failed", "exception": error})

    async def _change_adapters(self) -> None:
        await self._loaded.wait()
        assert self._requests is not None
        await self._requests.run_changes()

    async def _send_heartbeats(self) -> None:
        await self._welcomed.wait()
        while True:
            sent = self._outbox.sent
            await anyio.sleep(HEARTBEAT_S)
            if self._requests is not None:
                self._requests.note_memory(self._process.memory_info().rss)
            if self._outbox.sent == sent and not self._outbox.blocked:
                self._outbox.send_nowait([Heartbeat(self._gauges())])

    async def _close(self) -> WorkerExit:
        """Send the last frames, close the link and join the engine thread, each within its time limit."""
        reason = self._reason or ByeReason.INTERNAL
        self._loop.remove_signal_handler(signal.SIGTERM)
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(FLUSH_S), contextlib.suppress(LinkClosed):
                await self._outbox.flush()
            self._link.close(FLUSH_S)
            if self._requests is not None:
                await anyio.to_thread.run_sync(self._requests.close)
            joined = await anyio.to_thread.run_sync(self._engine.join, self._join_s)
            self._calls.close()
        return WorkerExit(reason, stuck=not joined)

    def _on_internal_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Exit after a callback raised: frames may be lost, and clients are notified only if the worker exits."""
        error = context.get("exception")
        text = str(context.get("message"))
        self._log.error("callback_failed", problem=text, exc_info=error)
        self.leave(ByeReason.INTERNAL, f"{text}: {type(error).__name__}: {error}" if error else text)

    def _on_lost(self, reason: str) -> None:
        self.leave(ByeReason.ORPHANED, reason)

    def _on_message(self, frames: list[bytes]) -> None:
        """Take all commands of a message, then wake the engine once, so that they start together."""
        effects = Effects()
        for frame in frames:
            try:
                self._take(decode_command(frame), effects)
            except ProtocolError as error:
                # The frame may have been a request that a client waits for. It is notified only if the worker exits.
                self._log.error("frame_refused", bytes=len(frame), problem=str(error))
                self.leave(ByeReason.PROTOCOL, f"the gateway sent an invalid frame: {error}")
            if self._reason is not None:
                return  # `leave` has failed the requests of this message, and no frame follows `Bye`
        self._carry_out(effects)

    def _take(self, command: Command, effects: Effects) -> None:
        match command:
            case Submit():
                self._submit(command, effects)
            case Tokenize():
                self._ask(command, effects)
            case Cancel(stream):
                if self._requests is not None:
                    self._requests.cancel(stream, effects)
            case Welcome():
                self._welcome(command)
            case ReadRows(query) if self._requests is None:
                effects.frames.append(Rows(query))
            case WriteRows(query) if self._requests is None:
                effects.frames.append(RowsWritten(query, text="the worker has not loaded its model yet"))
            case ReadRows() if self._requests is not None:
                self._requests.read_rows(command, effects)
            case WriteRows() if self._requests is not None:
                self._requests.write_rows(command, effects)
            case LoadAdapter(query) | UnloadAdapter(query) if self._requests is None:
                effects.frames.append(AdapterChanged(query, "the worker has not loaded its model yet"))
            case LoadAdapter() | UnloadAdapter() if self._requests is not None:
                self._requests.change_adapters(command)
            case Drain(grace_ms):
                self._drain(grace_ms / 1000)
            case Stop():
                self.leave(ByeReason.STOPPED, "the gateway stopped it")

    def _welcome(self, welcome: Welcome) -> None:
        if self._welcomed.is_set():
            raise ProtocolError("a second Welcome")
        if welcome.refusal or welcome.incarnation != self._incarnation:
            text = welcome.refusal or f"welcomed as incarnation {welcome.incarnation}, is {self._incarnation}"
            self.leave(ByeReason.REFUSED, text)
            return
        self._welcomed.set()
        self._load_began = self._loop.time()
        self._engine.start()

    def _submit(self, submit: Submit, effects: Effects) -> None:
        if self._requests is None:
            text = "the worker has not loaded its model yet"
            effects.frames.append(Failed(submit.stream, ErrorCode.UNAVAILABLE, text))
        elif self._draining:
            effects.frames.append(Failed(submit.stream, ErrorCode.DRAINING, "the worker admits no more requests"))
        else:
            self._requests.submit(submit, effects)

    def _ask(self, asked: Tokenize, effects: Effects) -> None:
        if self._requests is None:
            text = "the worker has not loaded its model yet"
            effects.frames.append(failed_query(asked, ErrorCode.UNAVAILABLE, text))
        elif self._draining:
            effects.frames.append(failed_query(asked, ErrorCode.DRAINING, "the worker admits no more requests"))
        else:
            self._requests.ask(asked, effects)

    def _carry_out(self, effects: Effects) -> None:
        """Post the inputs together, send the frames, and update the timer."""
        if effects.inputs:
            self._engine.post(effects.inputs)
            # The next step may take long. Until it ends, only this reports that tokenizing these prompts did no harm.
            effects.frames.append(Heartbeat(self._gauges()))
        self._outbox.send_nowait(effects.frames)
        if self._requests is not None:
            self._requests.arm()
        self._leave_if_drained()

    def _expire(self, effects: Effects) -> None:
        """Fail requests whose deadline has passed."""
        self._engine.post(effects.inputs)
        self._outbox.send_nowait(effects.frames)
        if self._requests is not None:
            self._requests.arm()
        self._leave_if_drained()

    def _drain(self, grace_s: float) -> None:
        if self._draining:
            return
        self._draining = True
        self._log.info("worker_drains", grace_s=grace_s, live=self._live)
        self._loop.call_later(grace_s, self.leave, ByeReason.STOPPED, "its grace to drain is over")

    def _gauges(self) -> Gauges:
        return Gauges() if self._requests is None else self._requests.gauges()

    @property
    def _live(self) -> int:
        """Number of requests without a terminal frame."""
        return 0 if self._requests is None else self._requests.live

    def _leave_if_drained(self) -> None:
        if self._draining and not self._live:
            self.leave(ByeReason.STOPPED, "it has drained")
