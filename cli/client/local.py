"""A model in this process: a session, which answers as a worker does."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console

from actors.process.logs import configure_logging
from cli.client.answers import Ask, Pieces, Summary
from cli.model import ChosenModel, check_model, worker_spec
from cli.options import CommandFailed
from cli.settings import Settings
from protocol.errors import ErrorCode
from protocol.events import Delta, Finished
from protocol.request import ChatInput, TextInput
from workers.load_options import Progress
from workers.process.loading import Loaded, load
from workers.process.spec import WorkerSpec
from workers.session import Session, SessionError


def load_here(spec: WorkerSpec) -> Loaded:
    """Load a model in this process, saying on stderr how far it is. Raises `CommandFailed` in a sentence."""
    configure_logging("baton", "warning")
    check_model(spec)
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
    """Owns a session. One answer at a time, on the thread that loaded it."""

    def __init__(self, name: str, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.session = session
        self._clock = clock

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Load the model of the settings. Raises `CommandFailed`."""
        model = ChosenModel.choose(settings)
        return cls(model.name, Session.of(load_here(worker_spec(settings, model))))

    def stream(self, ask: Ask) -> Pieces:
        """See `cli.client.answers.Answers.stream`."""
        began, first = self._clock(), 0.0
        prompt = ChatInput(ask.messages) if ask.messages else TextInput(ask.prompt)
        for event in _in_sentences(self.session.stream(prompt, ask.sampling, ask.limits)):
            first = first or self._clock() - began
            if event.text:
                yield event.text
            if isinstance(event, Finished):
                counts = event.usage.prompt_tokens, event.usage.completion_tokens
                yield Summary(*counts, event.reason, first, self._clock() - began)

    def close(self) -> None:
        self.session.close()


def _in_sentences(events: Generator[Delta | Finished, None, None]) -> Generator[Delta | Finished, None, None]:
    """The same events; what goes wrong is a `CommandFailed`."""
    try:
        yield from events
    except SessionError as error:
        without = "; --no-chat-template continues the prompt as plain text"
        hint = without if (error.code, error.field) == (ErrorCode.UNSUPPORTED, "messages") else ""
        raise CommandFailed(f"{error}{hint}") from error
