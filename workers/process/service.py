"""The worker's side of the protocol, on the event loop: commands in, frames out, and when to leave."""

import asyncio
import contextlib
import functools
import math
import os
import signal
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import structlog
from msgspec.structs import replace

from actors.transport.link import LinkClosed
from protocol.bounds import MAX_MILLISECONDS, MAX_NAME, PROTOCOL_VERSION, clip
from protocol.codec import decode_command, encode
from protocol.commands import Cancel, Command, Drain, Stop, Submit, Welcome
from protocol.errors import ByeReason, ErrorCode, ProtocolError
from protocol.events import BEAT_S, Beat, Bye, Capabilities, Event, Failed, Gauges, Hello, Loading, Ready
from workers.faults.faulty_link import connect
from workers.load_options import Progress
from workers.process.engine_thread import EngineThread, Order, TakeOut
from workers.process.exit_codes import Left
from workers.process.loading import Described, Loaded, describe, load
from workers.process.outbox import Outbox
from workers.process.output_processor import Admitted, Delivery
from workers.process.spec import WorkerSpec
from workers.process.tokenize_queue import Intake

WELCOME_S = 30.0
FLUSH_S = 1.0
"""For the last frames to leave."""
JOIN_S = 2.0
"""For the engine thread to come back from the device."""
INNOCENT = frozenset({ByeReason.STOPPED, ByeReason.STEPS_FAILED})
"""Reasons to leave in which no live sequence has had a part: those of a failed step have failed with it."""


class WorkerService:
    """One worker from `Hello` to `Bye`. Everything runs on the loop's thread but the `EngineThread` that it owns."""

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
        self._greeted = False
        self._welcomed = anyio.Event()
        self._loaded = anyio.Event()
        self._began = 0.0
        self._draining = False
        self._reason: ByeReason | None = None
        self._delivery: Delivery | None = None
        self._intake: Intake | None = None
        self._gauges = Gauges()
        self._graphs_failed: Callable[[], int] = lambda: 0
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, on_started: Callable[[], None] = lambda: None) -> Left:
        """Connect, load, serve and leave. `on_started` is called when `leave_threadsafe` may be.

        Raises `actors.transport.endpoint.EndpointError` for an address that is none.
        """
        self._loop = asyncio.get_running_loop()
        self._left = anyio.Event()
        self._link = connect(self._endpoint, self._on_message, self._on_lost, self._spec.faults)
        self._outbox = Outbox(self._link, self.engine_turned)
        self._engine = EngineThread(
            functools.partial(self._load, self._spec), self, lambda call: self._loop.call_soon_threadsafe(call)
        )
        self._loop.add_signal_handler(signal.SIGTERM, self.leave, ByeReason.STOPPED, "it was terminated")
        self._loop.set_exception_handler(self._on_defect)
        on_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._greet)
            tasks.start_soon(self._outbox.run)
            tasks.start_soon(self._make_prompts)
            tasks.start_soon(self._beat)
            await self._left.wait()
            tasks.cancel_scope.cancel()
        return await self._close()

    def leave(self, reason: ByeReason, text: str) -> None:
        """End what is live, say `Bye`, and let `run` return. The first reason counts."""
        if self._reason is not None:
            return
        self._reason = reason
        self._log.info("worker_leaves", reason=reason.value, text=text)
        code = ErrorCode.DRAINING if reason in INNOCENT else ErrorCode.LOST
        frames: list[Event] = []
        if self._intake is not None:
            frames.extend(self._intake.fail_all(code, clip(f"the worker left: {text}")))
        if self._greeted:
            self._outbox.send_nowait([*frames, Bye(reason, clip(text))])
        self._engine.stop()
        self._left.set()

    def leave_threadsafe(self, reason: ByeReason, text: str) -> None:
        """`leave`, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has left already
            self._loop.call_soon_threadsafe(self.leave, reason, text)

    def engine_progress(self, phase: str, done: int, total: int) -> None:
        if self._reason is None:
            self._outbox.send_nowait([Loading(clip(phase, MAX_NAME), done, total)])

    def engine_loaded(self, loaded: Loaded) -> None:
        if self._reason is not None:
            return
        # A stopped sequence keeps its place until the engine let go of it: hence twice the slots.
        most = 2 * self._spec.max_batch_size + self._spec.max_queue
        vocabulary = loaded.vocabulary
        self._delivery = Delivery(vocabulary, max_live=most, clock=self._loop.time, context=loaded.context)
        self._intake = Intake(self._delivery, self._loop.time, self._prompt_made)
        self._graphs_failed = lambda: loaded.engine.graphs_failed
        self._loaded.set()
        capabilities = Capabilities(
            chat=vocabulary is not None and vocabulary.chat is not None, text=vocabulary is not None, logprobs=True
        )
        load_ms = round((self._loop.time() - self._began) * 1000)
        device = clip(loaded.engine.capabilities.device, MAX_NAME)
        step_ms = min(math.ceil(loaded.step_s * 1000), MAX_MILLISECONDS)
        self._outbox.send_nowait([Ready(capabilities, load_ms, device, step_ms)])
        # The gateway logs `worker_ready` for all to see.
        self._log.debug("model_loaded", load_ms=load_ms, context=loaded.context, device=device, step_ms=step_ms)

    def engine_turned(self) -> None:
        """Send what the engine brought; not while the link has no room, which in time holds the engine up."""
        if self._delivery is None or self._reason is not None or self._outbox.blocked:
            return
        frames: list[Event] = []
        orders: list[Order] = []
        for outcome in self._engine.take():
            delivered = self._delivery.deliver(outcome)
            frames.extend(delivered.frames)
            orders.extend(TakeOut(stream, finish=True) for stream in delivered.finish)
            for stream, error in delivered.defects.items():
                self._log.error("text_failed", stream=stream, exc_info=error)
                orders.append(TakeOut(stream))
            self._gauges = outcome.gauges
            if outcome.step is None:  # no step carries what has changed, and none may follow
                frames.append(Beat(self._delivery.stamp(outcome.gauges)))
        if orders:
            self._engine.post(orders)
        self._outbox.send_nowait(frames)
        self._leave_if_drained()

    def engine_down(self, reason: ByeReason, text: str) -> None:
        self.engine_turned()
        self.leave(reason, text)

    async def _greet(self) -> None:
        """Say `Hello`; the gateway's `Welcome` starts the load."""
        try:
            described, problem = await anyio.to_thread.run_sync(describe, self._spec), ""
        except Exception as error:  # noqa: BLE001  the load will fail for the same reason, and says so to the gateway
            described, problem = Described(self._spec.backend, "unknown", 0, "", ""), str(error)
        self._log.debug("worker_greets", problem=problem)
        spec = self._spec
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            worker=spec.name,
            incarnation=self._incarnation,
            pid=os.getpid(),
            model=spec.model_name,
            backend=described.backend,
            device=described.device,
            slots=spec.max_batch_size,
            context=described.context,
            config_digest=described.digest,
            model_digest=described.model_digest,
        )
        try:
            with anyio.fail_after(WELCOME_S):
                await self._link.send([encode(hello)])
                self._greeted = True
                await self._welcomed.wait()
        except TimeoutError:
            self.leave(ByeReason.ORPHANED, f"no gateway answered within {WELCOME_S:g} s")
        except LinkClosed:
            return  # `on_lost` says why

    async def _make_prompts(self) -> None:
        await self._loaded.wait()
        assert self._intake is not None
        try:
            await self._intake.run()
        except Exception as error:  # noqa: BLE001  as of a callback: whoever waits learns of it when we leave
            self._on_defect(self._loop, {"message": "the intake failed", "exception": error})

    async def _beat(self) -> None:
        await self._welcomed.wait()
        while True:
            sent = self._outbox.sent
            await anyio.sleep(BEAT_S)
            if self._outbox.sent == sent and not self._outbox.blocked:
                self._outbox.send_nowait([Beat(self._stamped())])

    async def _close(self) -> Left:
        """Bounded: the last frames, the socket, the engine thread."""
        reason = self._reason or ByeReason.INTERNAL
        self._loop.remove_signal_handler(signal.SIGTERM)
        if self._timer is not None:
            self._timer.cancel()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(FLUSH_S), contextlib.suppress(LinkClosed):
                await self._outbox.flush()
            self._link.close(FLUSH_S)
            joined = await anyio.to_thread.run_sync(self._engine.join, self._join_s)
        return Left(reason, stuck=not joined)

    def _on_defect(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: frames may be lost, and whoever waits for them learns of it only when we leave."""
        error = context.get("exception")
        text = str(context.get("message"))
        self._log.error("callback_failed", problem=text, exc_info=error)
        self.leave(ByeReason.INTERNAL, f"{text}: {type(error).__name__}: {error}" if error else text)

    def _on_lost(self, reason: str) -> None:
        self.leave(ByeReason.ORPHANED, reason)

    def _on_message(self, frames: list[bytes]) -> None:
        """Take all commands of a message, then wake the engine once: what came together starts together."""
        orders: list[Order] = []
        answers: list[Event] = []
        for frame in frames:
            try:
                self._take(decode_command(frame), orders, answers)
            except ProtocolError as error:
                # A frame that is lost may have been a request that somebody waits for: only leaving tells him.
                self._log.error("frame_refused", bytes=len(frame), problem=str(error))
                self.leave(ByeReason.PROTOCOL, f"the gateway sent a frame that is none: {error}")
            if self._reason is not None:
                return  # `leave` has ended what this message began, and nothing follows its `Bye`
        self._carry_out(orders, answers)

    def _take(self, command: Command, orders: list[Order], answers: list[Event]) -> None:
        match command:
            case Submit():
                self._submit(command, orders, answers)
            case Cancel(stream):
                if self._delivery is not None and self._delivery.is_live(stream):
                    orders.append(TakeOut(stream))
                elif self._intake is not None and (ended := self._intake.take_out(stream)) is not None:
                    answers.append(ended)
            case Welcome():
                self._welcome(command)
            case Drain(grace_ms):
                self._drain(grace_ms / 1000)
            case Stop():
                self.leave(ByeReason.STOPPED, "it was told to stop")

    def _welcome(self, welcome: Welcome) -> None:
        if self._welcomed.is_set():
            raise ProtocolError("a second Welcome")
        if welcome.refusal or welcome.incarnation != self._incarnation:
            text = welcome.refusal or f"welcomed as incarnation {welcome.incarnation}, is {self._incarnation}"
            self.leave(ByeReason.REFUSED, text)
            return
        self._welcomed.set()
        self._began = self._loop.time()
        self._engine.start()

    def _submit(self, submit: Submit, orders: list[Order], answers: list[Event]) -> None:
        stream = submit.stream
        if self._intake is None:
            answers.append(Failed(stream, ErrorCode.UNAVAILABLE, "the worker has not loaded its model yet"))
            return
        if self._draining:
            answers.append(Failed(stream, ErrorCode.DRAINING, "the worker admits nothing more"))
            return
        if self._intake.is_live(stream):
            raise ProtocolError(f"stream {stream} was submitted twice")
        admitted = self._intake.submit(submit)
        if admitted is not None:
            _sort(admitted, orders, answers)

    def _prompt_made(self, admitted: Admitted) -> None:
        """The intake comes back to a request, whose prompt took long."""
        orders: list[Order] = []
        answers: list[Event] = []
        _sort(admitted, orders, answers)
        self._carry_out(orders, answers)

    def _carry_out(self, orders: list[Order], answers: list[Event]) -> None:
        """Wake the engine once, answer, and see what follows."""
        if orders:
            self._engine.post(orders)
            # The next step may take long: until it ends, this alone tells that their prompts did no harm.
            answers.append(Beat(self._stamped()))
        self._outbox.send_nowait(answers)
        self._arm()
        self._leave_if_drained()

    def _drain(self, grace_s: float) -> None:
        if self._draining:
            return
        self._draining = True
        self._log.info("worker_drains", grace_s=grace_s, live=self._live)
        self._loop.call_later(grace_s, self.leave, ByeReason.STOPPED, "its grace to drain is over")

    def _stamped(self) -> Gauges:
        """As they are between two turns of the engine, of which the next may be far away."""
        gauges = replace(self._gauges, graphs_failed=self._graphs_failed())
        return gauges if self._delivery is None else self._delivery.stamp(gauges)

    @property
    def _live(self) -> int:
        """Requests that have no terminal frame yet."""
        return 0 if self._intake is None else self._intake.live

    def _leave_if_drained(self) -> None:
        if self._draining and not self._live:
            self.leave(ByeReason.STOPPED, "it has drained")

    def _arm(self) -> None:
        """Set the timer to the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._delivery.next_deadline() if self._delivery is not None and self._reason is None else None
        if when is not None:
            self._timer = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        if self._delivery is None or self._reason is not None:
            return
        failed = self._delivery.expire()
        self._engine.post([TakeOut(each.stream) for each in failed])
        self._outbox.send_nowait(failed)
        self._arm()
        self._leave_if_drained()


def _sort(admitted: Admitted, orders: list[Order], answers: list[Event]) -> None:
    """What came of a `Submit` is for the engine or for the gateway."""
    if admitted.request is not None:
        orders.append(admitted.request)
    if admitted.answer is not None:
        answers.append(admitted.answer)
