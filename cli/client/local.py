"""The client of a model in this process, which gives the same answers as a worker."""

import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console

from actors.process.logs import configure_logging
from cli.client.model_client import ModelRequest, Piece, Pieces, Summary
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings
from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.errors import ErrorCode
from protocol.events import Delta, Finished, ReasoningSegment, Segment, TextSegment
from protocol.request import ChatInput, TextInput
from workers.load_options import Progress
from workers.local_model import LocalModel, LocalModelError
from workers.process.loading import Loaded, load
from workers.process.spec import WorkerSpec


def load_here(spec: WorkerSpec) -> Loaded:
    """Load a model in this process and show progress on stderr. Raises `CommandFailed`."""
    configure_logging("baton", "warning")
    check_model(spec)
    with loading_status(spec.model_name) as progress:
        try:
            return load(spec, progress)
        except Exception as error:
            raise CommandFailed(f"{spec.model_name} could not be loaded: {error or type(error).__name__}") from error


@contextmanager
def loading_status(model: str) -> Iterator[Progress]:
    """Show the phase of a load in a status line on stderr, if stderr is a terminal."""
    console = Console(stderr=True, highlight=False)
    with console.status(f"loading {model}") as status:

        def progress(phase: str, done: int, total: int) -> None:
            status.update(f"loading {model}: {phase} {done}/{total}" if total else f"loading {model}: {phase}")

        yield progress


class LocalClient:
    """Implements `ModelClient` for a session. One request at a time, on the thread that loaded the model."""

    def __init__(self, name: str, model: LocalModel, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.model = model
        self._clock = clock

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Load the model that the settings name. Raises `CommandFailed`."""
        model = ChosenModel.choose(settings)
        return cls(model.name, LocalModel.of(load_here(worker_spec(settings, model))))

    def stream(self, request: ModelRequest) -> Pieces:
        """See `ModelClient.stream`."""
        began, first = self._clock(), 0.0
        names = _CallNames()
        events = self.model.stream(_input(request), request.sampling, request.limits, grammar=request.grammar)
        for event in _translate_errors(events):
            first = first or self._clock() - began
            if event.text:
                yield event.text
            for segment in event.segments:
                yield names.piece(segment)
            if isinstance(event, Finished):
                counts = event.usage.prompt_tokens, event.usage.completion_tokens
                yield Summary(*counts, event.reason, first, self._clock() - began)

    def close(self) -> None:
        self.model.close()


class _CallNames:
    """Gives each tool call of an answer an id, as the gateway does on a server."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def piece(self, segment: Segment) -> Piece:
        match segment:
            case TextSegment(text=text):
                return text
            case ReasoningSegment(text=text):
                return ReasoningDelta(0, text)
        call_id = "" if segment.call in self._known else f"call_{uuid.uuid4().hex[:24]}"
        self._known.add(segment.call)
        return ToolCallDelta(0, segment.call, call_id, segment.name, segment.arguments)


def _input(request: ModelRequest) -> ChatInput | TextInput:
    if not request.messages:
        return TextInput(request.prompt)
    return ChatInput(
        request.messages,
        request.tools,
        parse_tools=bool(request.tools),
        parse_reasoning=True,
        images=request.images,
    )


def _translate_errors(events: Generator[Delta | Finished, None, None]) -> Generator[Delta | Finished, None, None]:
    """Yield the events, and raise an error of the model as `CommandFailed`."""
    try:
        yield from events
    except LocalModelError as error:
        without = "; --no-chat-template continues the prompt as plain text"
        hint = without if (error.code, error.field) == (ErrorCode.UNSUPPORTED, "messages") else ""
        raise CommandFailed(f"{error}{hint}") from error
