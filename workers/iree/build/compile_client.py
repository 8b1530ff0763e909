"""Gets the modules of a plan: from the cache, or from a compile process, which costs the engine's thread nothing."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from actors.process.parent_death import tied
from baton_serve.start import module_command
from workers.errors import LoadRefused
from workers.iree.build.compile_server import Answer, Request, Start
from workers.iree.build.compiler import COMPILE_SECONDS, CompileError
from workers.iree.build.recipe import Recipe

Group = tuple[str, ...]
"""The graphs of one module."""


@dataclass(frozen=True, slots=True)
class Built:
    """A module that is on the disk."""

    group: Group
    file: Path
    seconds: float | None
    """What tracing and compiling it took; None when it was found in the cache."""


BACKGROUND = 19
"""The niceness of a compiler beside a running engine: it takes what the engine leaves."""
SILENCE_S = 2 * COMPILE_SECONDS
"""A compile process that answers nothing for so long is ended."""


class Builder:
    """Knows where compiled modules are, and starts processes for those that are not there."""

    def __init__(self, recipe: Recipe) -> None:
        """Raises `CheckpointError` and `CacheError`."""
        self.recipe = recipe
        self.plan = recipe.plan()
        self._compiler = recipe.compiler()

    def find(self, group: Group) -> Path | None:
        """The module, when it was compiled before."""
        return self._compiler.find(self.key(group))

    def key(self, group: Group) -> str:
        """What the module is found by: known without tracing its graphs."""
        return self._compiler.key(self.plan.describe(group))

    def process(self, *, parallel: int, niceness: int = 0) -> "CompileProcess":
        """A compile process for this builder's plan; a context that ends it."""
        return CompileProcess(self, parallel, niceness)


class CompileProcess:
    """One `workers.iree.build.compile_server` (see there). Used by one thread, except `kill`."""

    def __init__(self, builder: Builder, parallel: int, niceness: int) -> None:
        self._builder = builder
        job = module_command("workers.iree.build.compile_server")
        self._process = subprocess.Popen(tied(job, niceness), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell(Start(builder.recipe, parallel))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, group: Group) -> None:
        """Ask for one module; `answers` brings it."""
        self._tell(Request(group, self._builder.key(group)))

    def answers(self, count: int) -> Iterator[Built]:
        """The next modules, in the order in which they are done.

        Raises `CompileError` for one that cannot be compiled or when the process died, `LoadRefused` where a person
        must mend something.
        """
        assert self._process.stdout is not None
        for _ in range(count):
            watchdog = threading.Timer(SILENCE_S, self.kill)
            watchdog.start()
            try:
                line = self._process.stdout.readline()
            finally:
                watchdog.cancel()
            if not line:
                raise CompileError(f"the compile process ended with {self._process.wait()}")
            answer = msgspec.json.decode(line, type=Answer)
            if answer.problem:
                raise (LoadRefused if answer.refused else CompileError)(answer.problem)
            yield Built(answer.names, Path(answer.file), answer.seconds)

    def kill(self) -> None:
        """End it, and with it the compilers that it runs. From any thread."""
        self._process.kill()

    def close(self) -> None:
        """End it and free its pipes. Nothing may be called after."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what it was to be told last
                    stream.close()

    def _tell(self, message: Start | Request) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died, which the next answer says
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()


def build_all(builder: Builder, groups: Sequence[Group], parallel: int) -> Iterator[Built]:
    """Every module, those that are in the cache first. Raises what `CompileProcess.answers` raises."""
    missing: list[Group] = []
    for group in groups:
        if (file := builder.find(group)) is None:
            missing.append(group)
        else:
            yield Built(group, file, None)
    if not missing:
        return
    with builder.process(parallel=min(parallel, len(missing))) as process:
        for group in missing:
            process.ask(group)
        yield from process.answers(len(missing))
