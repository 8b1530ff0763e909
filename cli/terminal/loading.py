"""The display of loading workers: progress bars on a terminal, log lines elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.terminal.ready_message import ReadyMessage

_log = structlog.get_logger("cli.terminal.loading")

SETTLED = {WorkerState.READY, WorkerState.GIVEN_UP, WorkerState.STOPPED}


class LoadingDisplay(Protocol):
    """Gets every change of every worker, on the event loop. Prints the announcement once, when one is ready, or without
    waiting for one if all models are loaded by their first request."""

    def worker_changed(self, status: WorkerStatus) -> None: ...
    def ready_on_demand(self, models: Sequence[str]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@contextmanager
def _showing(console: Console) -> Iterator[None]:
    """Disable the console if it cannot be written, instead of ending the server.

    The pipe may be closed, for which Rich raises `SystemExit` (`Console.on_broken_pipe`), or the disk may be full.
    """
    try:
        yield
    except (OSError, SystemExit) as error:
        console.quiet = True
        _log.warning("display_ended", problem=repr(error))


def choose_display(workers: Sequence[str], ready: ReadyMessage, console: Console | None = None) -> LoadingDisplay:
    """Return bars if standard output or, failing that, standard error is a terminal, and a log if neither is."""
    console = console or Console(highlight=False, stderr=sys.stderr.isatty() and not sys.stdout.isatty())
    return Bars(workers, ready, console) if console.is_terminal else LogLines(ready)


def describe(status: WorkerStatus) -> str:
    """Describe the state of a worker in a few words."""
    if status.state is WorkerState.LOADING and status.loading is not None:
        return status.loading.phase
    if status.state is WorkerState.BACKOFF:
        # Whether it is restarted is decided after this.
        return f"lost: {status.reason}"
    if status.state is WorkerState.GIVEN_UP:
        return f"given up: {status.reason}"
    return status.state.value


class LogLines:
    """Logs each phase of a worker that loads, and the announcement. Other changes are logged where they happen."""

    def __init__(self, ready: ReadyMessage) -> None:
        self._ready = ready
        self._phases: dict[str, str] = {}
        self._announced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def worker_changed(self, status: WorkerStatus) -> None:
        phase = status.loading.phase if status.state is WorkerState.LOADING and status.loading is not None else ""
        if phase != self._phases.get(status.name, ""):
            self._phases[status.name] = phase
            if phase:
                _log.info("worker_loads", worker=status.name, phase=phase)
        if status.state is WorkerState.READY and not self._announced and (fields := self._ready.fields(status)):
            self._announced = True
            _log.info("ready", **fields)

    def ready_on_demand(self, models: Sequence[str]) -> None:
        self._announced = True
        _log.info("ready", url=self._ready.url, models=list(models))


class Bars:
    """Shows a bar for each worker while it loads. The bars are removed when all workers have settled."""

    def __init__(self, workers: Sequence[str], ready: ReadyMessage, console: Console) -> None:
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
            if self._open and status.name in self._bars:  # a worker that was added later has no bar
                self._update(status)
            if status.state is WorkerState.READY and not self._announced and (text := self._ready.text(status)):
                self._announced = True
                self._console.print(text, markup=False, soft_wrap=True)

    def ready_on_demand(self, models: Sequence[str]) -> None:
        self._announced = True
        with _showing(self._console):
            self._console.print(self._ready.on_demand(models), markup=False, soft_wrap=True)

    def _update(self, status: WorkerStatus) -> None:
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
