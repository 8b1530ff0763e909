"""A model in this process: the worker's own load, engine and text, with a batch of one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console

from actors.logs import configure_logging
from cli.answers import Ask, Pieces, Summary
from cli.model import ChosenModel, worker_spec
from cli.options import CommandFailed
from cli.settings import Settings
from protocol.commands import Submit
from protocol.events import Event, Failed, Finished, Step
from protocol.request import ChatInput, Input, TextInput
from workers.delivery import Delivery, Outcome
from workers.loading import Loaded, Progress, load
from workers.request import RequestRefused
from workers.spec import WorkerSpec


def load_here(spec: WorkerSpec) -> Loaded:
    """Load a model in this process, saying on stderr how far it is. Raises `CommandFailed` in a sentence."""
    configure_logging("baton", "warning")
    with loading_status(spec.model_name) as progress:
        try:
            return load(spec, progress)
        except Exception as error:
            raise CommandFailed(f"{spec.model_name} could not be loaded: {error or type(error).__name__}") from error


@contextmanager
def loading_status(model: str) -> Iterator[Progress]:
    """A line on the terminal that says what is being done; nothing when stderr is not one."""
    console = Console(stderr=True, highlight=False)
    with console.status(f"loading {model}") as status:

        def progress(phase: str, done: int, total: int) -> None:
            status.update(f"loading {model}: {phase} {done}/{total}" if total else f"loading {model}: {phase}")

        yield progress


class LocalAnswers:
    """Owns the engine. One answer at a time, on the thread that loaded it."""

    def __init__(self, name: str, loaded: Loaded, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._loaded = loaded
        self._clock = clock
        self._streams = 0

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Load the model of the settings. Raises `CommandFailed`."""
        model = ChosenModel.choose(settings)
        return cls(model.name, load_here(worker_spec(settings, model)))

    def stream(self, ask: Ask) -> Pieces:
        """See `cli.answers.Answers.stream`."""
        self._streams += 1
        stream, began, first = self._streams, self._clock(), 0.0
        # The same table that a worker keeps: an answer here is the answer there, to the letter.
        delivery = Delivery(self._loaded.vocabulary, max_live=1, clock=self._clock)
        self._submit(delivery, Submit(stream, "cli", _input(ask), ask.sampling, ask.limits))
        try:
            while delivery.live:
                for event in self._step(delivery):
                    first = first or self._clock() - began
                    if text := _text(event):
                        yield text
                    if isinstance(event, Finished):
                        total = self._clock() - began
                        counts = event.usage.prompt_tokens, event.usage.completion_tokens
                        yield Summary(*counts, event.reason, first, total)
        finally:
            self._loaded.engine.cancel(stream)

    def close(self) -> None:
        self._loaded.engine.close()

    def _submit(self, delivery: Delivery, submit: Submit) -> None:
        admitted = delivery.admit(submit)
        if isinstance(admitted.answer, Failed):
            raise CommandFailed(admitted.answer.text)
        if admitted.request is None:
            return
        try:
            self._loaded.engine.submit(admitted.request)
        except RequestRefused as refusal:
            raise CommandFailed(refusal.text) from refusal

    def _step(self, delivery: Delivery) -> Iterator[Event]:
        """One engine step, and the end of a stream that found its stop string in it."""
        engine = self._loaded.engine
        delivered = delivery.deliver(Outcome(engine.step(), (), (), engine.gauges()))
        yield from delivered.frames
        ends = tuple(end for stream in delivered.finish if (end := engine.finish(stream)) is not None)
        yield from delivery.deliver(Outcome(None, ends, (), engine.gauges())).frames


def _text(event: Event) -> str:
    """The text of an event of the only stream. Raises `CommandFailed` for a failure."""
    match event:
        case Step(deltas=deltas):
            return "".join(delta.text for delta in deltas)
        case Finished(text=text):
            return text
        case Failed(text=text):
            raise CommandFailed(text)
    return ""


def _input(ask: Ask) -> Input:
    return ChatInput(ask.messages) if ask.messages else TextInput(ask.prompt)
