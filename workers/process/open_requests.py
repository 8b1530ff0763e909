"""Requests of a loaded worker between `Submit` and their terminal frame: prompts, output and deadlines."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from protocol.commands import LoadAdapter, ReadRows, Submit, Tokenize, UnloadAdapter, WriteRows
from protocol.errors import ErrorCode, ProtocolError
from protocol.events import AdapterChanged, Event, Failed, Gauges, Heartbeat, Tokenized
from workers.engine.transfer.row_frames import refusal, rows_frame
from workers.process.adapters.change import AdapterChange
from workers.process.adapters.runtime_adapters import RuntimeAdapters
from workers.process.engine_thread import EngineInput, RemoveSequence
from workers.process.loading import Loaded
from workers.process.output_processor import EngineOutput, OutputProcessor, SubmitResult
from workers.process.prompts.tokenize_queue import TokenizeQueue


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of commands or engine outputs: inputs for the engine and frames for the gateway, in order."""

    inputs: list[EngineInput] = field(default_factory=list)
    frames: list[Event] = field(default_factory=list)

    def add(self, result: SubmitResult) -> None:
        """Add the answer to a `Submit`."""
        if result.request is not None:
            self.inputs.append(result.request)
        if result.answer is not None:
            self.frames.append(result.answer)


class OpenRequests:
    """Owns the tokenize queue, the output processor and the timer of the next deadline. Used on the event loop."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        max_live: int,
        loop: asyncio.AbstractEventLoop,
        log: FilteringBoundLogger,
        on_admission: Callable[[Effects], None],
        on_expired: Callable[[Effects], None],
    ) -> None:
        """`on_admission` is called for a request whose prompt was queued and for the answer to a query, `on_expired`
        for requests past their deadline."""
        self._loop = loop
        self._log = log
        self._on_admission = on_admission
        self._on_expired = on_expired
        self._engine = loaded.engine
        self._grammars = loaded.grammars
        self._gauges = Gauges()
        self._output = OutputProcessor(
            loaded.tokenizer,
            max_live=max_live,
            clock=loop.time,
            context=loaded.context,
            eos_ids=loaded.eos_ids,
            sampling_defaults=loaded.sampling_defaults,
            grammars=loaded.grammars,
            formats=loaded.formats,
            vocab_size=loaded.engine.capabilities.vocab_size,
            sparse=loaded.sparse,
            images=loaded.images,
            pooling=loaded.pooling,
            adapters=loaded.engine.capabilities.adapters,
        )
        self._queue = TokenizeQueue(self._output, loop.time, self._admitted, self._answered)
        self._timer: asyncio.TimerHandle | None = None
        self._adapters = RuntimeAdapters(
            loaded.adapter_slots,
            self._output.adapters,
            loaded.engine.capabilities.adapter_places,
            self._change,
            self._changed,
            log,
        )

    @property
    def live(self) -> int:
        """Number of requests without a terminal frame."""
        return self._queue.live

    def note_memory(self, resident: int) -> None:
        """Note the resident bytes of the process, which all gauges report from now on."""
        self._output.memory_bytes = resident

    def gauges(self) -> Gauges:
        """Return the gauges of the last engine output, with what has changed since: the next step may be far away."""
        return self._output.with_reached(replace(self._gauges, graphs_failed=self._engine.graphs_failed))

    def submit(self, submit: Submit, effects: Effects) -> None:
        """Start a request. Raises `ProtocolError` for a stream that is open already."""
        if self._queue.is_live(submit.stream):
            raise ProtocolError(f"stream {submit.stream} was submitted twice")
        result = self._queue.submit(submit)
        if result is not None:
            effects.add(result)

    def ask(self, asked: Tokenize, effects: Effects) -> None:
        """Take a query."""
        refusal = self._queue.ask(asked)
        if refusal is not None:
            effects.frames.append(refusal)

    def read_rows(self, asked: ReadRows, effects: Effects) -> None:
        """Take a question for cache rows."""
        effects.inputs.append(asked)

    def write_rows(self, given: WriteRows, effects: Effects) -> None:
        """Take cache rows of another worker, if their digest is right."""
        if (refused := refusal(given, self._engine.rows_format)) is None:
            effects.inputs.append(given)
        else:
            effects.frames.append(refused)

    def change_adapters(self, command: LoadAdapter | UnloadAdapter) -> None:
        """Take a change of the adapters, which is answered later."""
        self._adapters.take(command)

    def cancel(self, stream: int, effects: Effects) -> None:
        """End a request. An unknown stream is ignored."""
        if self._output.is_live(stream):
            effects.inputs.append(RemoveSequence(stream))
        elif (ended := self._queue.cancel(stream)) is not None:
            effects.frames.append(ended)

    def process(self, outputs: Sequence[EngineOutput]) -> Effects:
        """Turn engine outputs into frames, and remove the sequences that end because of their text."""
        effects = Effects()
        for output in outputs:
            processed = self._output.process(output)
            effects.frames.extend(processed.frames)
            effects.frames.extend(rows_frame(answer, self._engine.rows_format) for answer in output.rows)
            effects.inputs.extend(RemoveSequence(stream, finish=True) for stream in processed.finish)
            for stream, error in processed.text_errors.items():
                self._log.error("text_failed", stream=stream, exc_info=error)
                effects.inputs.append(RemoveSequence(stream))
            self._adapters.applied(output.changes)
            self._gauges = output.gauges
            if output.step is None:  # no `Step` carries the gauges, and none may follow
                effects.frames.append(Heartbeat(self._output.with_reached(output.gauges), processed.prefixes))
        return effects

    def fail_all(self, code: ErrorCode, text: str) -> list[Failed]:
        """End all requests, because the worker exits."""
        return self._queue.fail_all(code, text)

    def close(self) -> None:
        """End the process that checks grammars. Called on a thread: a compile may have to end first."""
        if self._grammars is not None:
            self._grammars.close()

    def arm(self) -> None:
        """Set the timer to the next deadline."""
        self.disarm()
        when = self._output.next_deadline()
        if when is not None:
            self._timer = self._loop.call_at(when, self._expire)

    def disarm(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def run(self) -> None:
        """Build queued prompts until cancelled."""
        await self._queue.run()

    async def run_changes(self) -> None:
        """Load and unload adapters until cancelled."""
        await self._adapters.run()

    def _admitted(self, result: SubmitResult) -> None:
        effects = Effects()
        effects.add(result)
        self._on_admission(effects)

    def _answered(self, answer: Tokenized) -> None:
        self._on_admission(Effects(frames=[answer]))

    def _change(self, change: AdapterChange) -> None:
        self._on_admission(Effects([change]))

    def _changed(self, answer: AdapterChanged) -> None:
        self._on_admission(Effects(frames=[answer]))

    def _expire(self) -> None:
        failed = self._output.expire()
        self._on_expired(Effects([RemoveSequence(each.stream) for each in failed], [*failed]))
