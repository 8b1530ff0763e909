"""The modules of a plan: from the cache, or from a compile process, which takes no time of the engine's thread."""

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
from workers.iree.build.compile_server import CompileRequest, CompileResult, CompileStart
from workers.iree.build.compiler import BACKGROUND_SECONDS, COMPILE_SECONDS, CompileError, Compiler
from workers.iree.build.encoder.plan import EncoderPlan
from workers.iree.build.encoder.recipe import EncoderRecipe
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.build.recipe import Recipe

Group = tuple[str, ...]
"""The graphs of one module."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled module on disk."""

    group: Group
    file: Path
    seconds: float | None
    """Seconds of tracing and compiling; None when it was found in the cache."""


class ModuleBuilder:
    """Finds the compiled modules of a recipe, and starts processes for those that are missing."""

    recipe: Recipe | EncoderRecipe
    plan: GraphPlan | EncoderPlan

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def find(self, group: Group) -> Path | None:
        """Return the module if it was compiled before."""
        return self._compiler.find(self.key(group))

    def key(self, group: Group) -> str:
        """Return what the module is found by, without tracing its graphs."""
        return self._compiler.key(self.plan.describe(group))

    def process(self, *, parallel: int, background: bool = False) -> "CompileProcess":
        """Start a compile process for this builder's plan; a context that ends it. In the `background` it takes the
        processor time that others leave."""
        return CompileProcess(self, parallel, background)


class Builder(ModuleBuilder):
    """That of a decoder."""

    recipe: Recipe
    plan: GraphPlan

    def __init__(self, recipe: Recipe) -> None:
        """Raises `CheckpointError` and `CacheError`."""
        super().__init__(recipe.compiler())
        self.recipe, self.plan = recipe, recipe.plan()


class EncoderBuilder(ModuleBuilder):
    """That of an encoder."""

    recipe: EncoderRecipe
    plan: EncoderPlan

    def __init__(self, recipe: EncoderRecipe) -> None:
        """Raises `CheckpointError` and `CacheError`."""
        super().__init__(recipe.compiler())
        self.recipe, self.plan = recipe, recipe.plan()


class CompileProcess:
    """A process that runs `workers.iree.build.compile_server`. Used by one thread, except `kill`."""

    def __init__(self, builder: ModuleBuilder, parallel: int, background: bool) -> None:
        self._builder = builder
        self.silence_s = 2 * (BACKGROUND_SECONDS if background else COMPILE_SECONDS)
        """A process without a result for so long is killed."""
        job = module_command("workers.iree.build.compile_server")
        command = tied(job, background=background)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell(CompileStart(builder.recipe, parallel, background))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(self, group: Group) -> None:
        """Request one module; `results` yields it."""
        self._tell(CompileRequest(group, self._builder.key(group)))

    def results(self, count: int) -> Iterator[Built]:
        """Yield the next modules, in the order in which they are done.

        Raises `CompileError` for one that cannot be compiled or when the process died, `LoadRefused` for a problem that
        an operator must solve.
        """
        assert self._process.stdout is not None
        for _ in range(count):
            watchdog = threading.Timer(self.silence_s, self.kill)
            watchdog.start()
            try:
                line = self._process.stdout.readline()
            finally:
                watchdog.cancel()
            if not line:
                raise CompileError(f"the compile process ended with {self._process.wait()}")
            answer = msgspec.json.decode(line, type=CompileResult)
            if answer.problem:
                raise (LoadRefused if answer.refused else CompileError)(answer.problem)
            yield Built(answer.names, Path(answer.file), answer.seconds)

    def kill(self) -> None:
        """Kill the process, and with it the compilers that it runs. From any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and close its pipes. Nothing may be called after."""
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # the process may have ended before the last request
                    stream.close()

    def _tell(self, message: CompileStart | CompileRequest) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died, which the next answer says
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()


class Building:
    """Modules that are looked up, and compiled if they are missing, from the moment it is made. A context that ends the
    compile process."""

    def __init__(self, builder: ModuleBuilder, groups: Sequence[Group], parallel: int) -> None:
        """Up to `parallel` modules are compiled at once, the first ones first."""
        self.groups = tuple(groups)
        files = [(group, builder.find(group)) for group in groups]
        self.found = tuple(Built(group, file, None) for group, file in files if file is not None)
        """The modules that were in the cache."""
        missing = [group for group, file in files if file is None]
        self._missing = len(missing)
        self._process: CompileProcess | None = None
        if missing:
            self._process = builder.process(parallel=min(parallel, len(missing)))
            for group in missing:
                self._process.request(group)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def compiled(self) -> Iterator[Built]:
        """Yield the modules that were missing, in the order in which they are done, from the first one that no earlier
        call has yielded. Raises what `CompileProcess.results` raises."""
        while self._process is not None and self._missing:
            self._missing -= 1
            yield from self._process.results(1)

    def kill(self) -> None:
        """Kill the compile process. From any thread."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the compile process. Nothing may be called after."""
        if self._process is not None:
            self._process.close()


def build_all(builder: ModuleBuilder, groups: Sequence[Group], parallel: int) -> Iterator[Built]:
    """Yield every module, those in the cache first. Raises what `CompileProcess.results` raises."""
    with Building(builder, groups, parallel) as building:
        yield from building.found
        yield from building.compiled()
