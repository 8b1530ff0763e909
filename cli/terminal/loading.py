"""What people see between `baton serve` and the first answer: a bar a worker on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from actors.supervision.worker import WorkerState, WorkerStatus

SETTLED = {WorkerState.READY, WorkerState.GIVEN_UP, WorkerState.STOPPED}


class LoadingDisplay(Protocol):
    """Told of every change of every worker, on the event loop; announces once, when the first one may be asked."""

    def worker_changed(self, status: WorkerStatus) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Announce = Callable[[WorkerStatus], str]
"""What to say when the first worker is ready; nothing is said, and it is asked again, while that is empty."""


@contextmanager
def _showing(console: Console) -> Iterator[None]:
    """What cannot be shown, for whoever reads it is gone or the disk is full, must not end a server: from then on
    nothing is. Rich ends the program of a reader that is gone (`Console.on_broken_pipe`)."""
    try:
        yield
    except (OSError, SystemExit) as error:
        console.quiet = True
        structlog.get_logger("cli.terminal.loading").warning("display_ended", problem=repr(error))


def choose_display(workers: Sequence[str], ready: Announce, console: Console | None = None) -> LoadingDisplay:
    """Bars when standard output is a terminal, lines when it is a file or a service manager."""
    console = console or Console(highlight=False)
    return Bars(workers, ready, console) if console.is_terminal else Lines(workers, ready, console)


def describe(status: WorkerStatus) -> str:
    """What a worker is doing, in a few words."""
    if status.state is WorkerState.LOADING and status.loading is not None:
        return status.loading.phase
    if status.state is WorkerState.BACKOFF:
        # Whether it is started again is decided after this.
        return f"lost: {status.reason}"
    if status.state is WorkerState.GIVEN_UP:
        return f"given up: {status.reason}"
    return status.state.value


class Lines:
    """One line for every phase of every worker."""

    def __init__(self, workers: Sequence[str], ready: Announce, console: Console) -> None:
        self._ready = ready
        self._console = console
        self._said: dict[str, str] = dict.fromkeys(workers, "")
        self._announced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def worker_changed(self, status: WorkerStatus) -> None:
        words = describe(status)
        if words != self._said.get(status.name):
            self._said[status.name] = words
            self._say(f"{status.name}: {words}")
        if status.state is WorkerState.READY and not self._announced and (text := self._ready(status)):
            self._announced = True
            self._say(text)

    def _say(self, text: str) -> None:
        with _showing(self._console):
            self._console.print(text, markup=False, soft_wrap=True)


class Bars:
    """One bar for every worker while it loads; they go away when all have settled."""

    def __init__(self, workers: Sequence[str], ready: Announce, console: Console) -> None:
        self._ready = ready
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[worker]}  {task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._bars = {name: self._progress.add_task("starting", total=None, worker=name, count="") for name in workers}
        self._open = set(workers)
        self._announced = False

    def __enter__(self) -> Self:
        if self._bars:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def worker_changed(self, status: WorkerStatus) -> None:
        with _showing(self._console):
            if self._open and status.name in self._bars:  # one that was added later has no bar
                self._draw(status)
            if status.state is WorkerState.READY and not self._announced and (text := self._ready(status)):
                self._announced = True
                self._console.print(text, markup=False, soft_wrap=True)

    def _draw(self, status: WorkerStatus) -> None:
        loading = status.loading
        total = loading.total if loading is not None and loading.total else None
        done = loading.done if loading is not None else 0
        self._progress.update(
            self._bars[status.name],
            description=describe(status),
            completed=done,
            total=total,
            count=f"{done}/{total}" if total else "",
        )
        if status.state in SETTLED:
            self._open.discard(status.name)
        if not self._open:
            self._progress.stop()
