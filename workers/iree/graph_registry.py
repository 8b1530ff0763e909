"""The loaded graphs of a runner, and the thread that compiles and loads the others in the background."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import iree.runtime as rt
import structlog

from workers.iree.build.compile_client import Builder, Building, Built, CompileProcess, Group, ModuleBuilder
from workers.iree.build.compiler import CompileError
from workers.iree.device.device import Module, Results
from workers.load_options import Progress

TRIES = 3
"""Attempts for each module: a compiler may be killed for the memory that it takes, or its disk be full for a while."""
RETRY_S = 30.0
"""Seconds before a module is tried again."""


class _Again(NamedTuple):
    """A module that failed and is to be tried again."""

    when: float
    """On the monotonic clock."""
    group: Group


class ModuleRegistry:
    """The graphs that are ready. Owned by the engine's thread, which never waits here for a compiler after `open`.

    A background thread loads those that `open` did not wait for, as they are compiled. Then it compiles and loads the
    others with the processor time that is left, one module after the other, the one that was missed last first. A
    module that cannot be compiled or loaded is tried again when all others are ready and `retry_s` have passed, `TRIES`
    times in all; then it is counted as failed, and larger graphs serve in its place.
    """

    def __init__(self, builder: ModuleBuilder, load: Callable[[Path], Module], retry_s: float = RETRY_S) -> None:
        """`load` maps a compiled file; it is called from both threads."""
        self._builder = builder
        self._load = load
        self._retry_s = retry_s
        self._ready: dict[str, Module] = {}
        self._rare: dict[str, Group] = {}
        self._failed = 0
        self._log = structlog.get_logger()
        self._loaded: SimpleQueue[tuple[Group, Module]] = SimpleQueue()
        # Guards what follows, for both threads; notified when the thread has something to do, or has done it.
        self._changed = threading.Condition()
        self._wanted: list[Group] = []
        self._again: list[_Again] = []
        self._process: CompileProcess | None = None
        self._opening: Building | None = None
        """The modules of `open`, and their compile process."""
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> frozenset[str]:
        """The names of the graphs that can be called."""
        return frozenset(self._ready)

    @property
    def failed(self) -> int:
        """Modules that could not be compiled or loaded in all attempts. From any thread."""
        return self._failed

    @property
    def pending(self) -> int:
        """Modules that are to be compiled or loaded."""
        self._adopt()
        with self._changed:
            return len(self._wanted) + len(self._again)

    def open(self, building: Building, needed: Sequence[Group], progress: Progress) -> None:
        """Load modules, and wait for those that are `needed`; owns `building` from now on, which has them and others.

        The others follow in the background, before what is fetched. Raises `CompileError`, `LoadRefused` and what the
        device raises.
        """
        self._opening = building
        left = set(needed)

        def enter(built: Built) -> None:
            self._enter(built.group, self._load(built.file))
            left.discard(built.group)
            progress("compile graphs", len(needed) - len(left), len(needed))

        progress("compile graphs", 0, len(needed))
        for built in building.found:
            enter(built)
        compiled = building.compiled()
        while left:
            enter(next(compiled))
        with self._changed:
            self._wanted = [group for group in building.groups if group[0] not in self._ready]
        if not self._wanted:
            self._end_opening()

    def fetch(self, groups: Iterable[Group], rare: Iterable[Group] = ()) -> None:
        """Compile and load modules in the background, and rare ones when they are first missed."""
        self._rare |= {name: group for group in rare for name in group}
        with self._changed:
            self._wanted += [group for group in groups if group not in self._wanted]
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="graphs", daemon=True)
            self._thread.start()

    def covering(self, kind: str, sizes: Sequence[int], needed: int) -> int | None:
        """Return the smallest size of at least `needed` whose graph is ready, or None.

        If a smaller size would do, its graph is fetched next, also if it is a rare one.
        """
        self._adopt()
        fitting = [size for size in sizes if size >= needed]
        if fitting and f"{kind}_{fitting[0]}" not in self._ready:
            self._miss(f"{kind}_{fitting[0]}")
        return next((size for size in fitting if f"{kind}_{size}" in self._ready), None)

    def largest(self, kind: str, sizes: Sequence[int]) -> int:
        """Return the largest size of a kind that is ready; one always is."""
        return next(size for size in reversed(sizes) if f"{kind}_{size}" in self._ready)

    def __contains__(self, name: str) -> bool:
        """Return whether a graph is ready."""
        self._adopt()
        return name in self._ready

    def __getitem__(self, name: str) -> Module:
        """Raises `KeyError` for a graph that is not ready."""
        return self._ready[name]

    def call(self, name: str, *arguments: rt.HalBufferView | int) -> Results:
        """Run a graph that is ready. Raises `KeyError` for another one."""
        return self._ready[name].call(name, *arguments)

    def wait_for(self, name: str) -> None:
        """Wait for a graph that was fetched, or is being opened. Raises `CompileError` if it cannot be compiled."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not any(name in group for group in self._wanted))
        if name not in self:
            raise CompileError(f"the graph {name} could not be compiled")

    def settle(self) -> None:
        """Wait until everything that was fetched is ready or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._wanted or self._again) or self._closing)
        self._adopt()

    def close(self) -> None:
        """End the thread and its compiler, and release the modules."""
        with self._changed:
            self._closing = True
            for compiling in (self._process, self._opening):
                if compiling is not None:
                    compiling.kill()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._end_opening()
        self._loaded = SimpleQueue()
        self._ready.clear()

    def _adopt(self) -> None:
        """Enter the modules that the thread has loaded."""
        if self._loaded.empty():
            return
        while True:
            try:
                loaded = self._loaded.get_nowait()
            except Empty:
                return
            self._enter(*loaded)

    def _enter(self, group: Group, module: Module) -> None:
        for name in group:
            self._ready[name] = module

    def _miss(self, name: str) -> None:
        if name in self._rare:
            group = self._rare[name]
            self._rare = {other: its for other, its in self._rare.items() if its != group}
            self.fetch([group])
        else:
            self._prefer(name)

    def _prefer(self, name: str) -> None:
        """A hint, for which the engine's thread does not wait."""
        if not self._changed.acquire(blocking=False):
            return
        try:
            for at, group in enumerate(self._wanted):
                if name in group:
                    self._wanted.insert(0, self._wanted.pop(at))
                    return
        finally:
            self._changed.release()

    def _run(self) -> None:
        self._finish_opening()
        tried: Counter[Group] = Counter()
        while (group := self._next()) is not None:
            again: list[_Again] = []
            try:
                module = self._load(self._file(group))
            except Exception as error:  # noqa: BLE001 - whatever it is, a larger graph serves in its place
                self._end_process()
                tried[group] += 1
                if not self._closing and self._is_tried_again(group, error, tried[group]):
                    again = [_Again(time.monotonic() + self._retry_s, group)]
            else:
                self._loaded.put((group, module))
            with self._changed:
                self._wanted.remove(group)
                self._again += again
                self._changed.notify_all()
        self._end_process()

    def _finish_opening(self) -> None:
        """Load the modules that `open` did not wait for. After a failure those that are missing are compiled like any
        other."""
        if self._opening is None:
            return
        try:
            for built in self._opening.compiled():
                self._loaded.put((built.group, self._load(built.file)))
                with self._changed:
                    self._wanted.remove(built.group)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - as in `_run`
            if not self._closing:
                with self._changed:
                    graphs = [name for group in self._wanted if group in self._opening.groups for name in group]
                text = str(error) or type(error).__name__
                self._log.warning("graph_is_tried_again", graphs=graphs, text=text, tried=1, retry_s=0.0)
        self._end_opening()

    def _end_opening(self) -> None:
        with self._changed:
            opening, self._opening = self._opening, None
        if opening is not None:
            opening.close()

    def _is_tried_again(self, group: Group, error: Exception, times: int) -> bool:
        """Log a failure, the `times`th of its module; return whether there is another attempt, else count it."""
        text = str(error) or type(error).__name__
        if times < TRIES:
            self._log.warning("graph_is_tried_again", graphs=group, text=text, tried=times, retry_s=self._retry_s)
            return True
        self._log.error("graph_failed", graphs=group, text=text, tried=times)
        self._failed += 1
        return False

    def _next(self) -> Group | None:
        """Return the next module; wait until there is one, without a compile process."""
        with self._changed:
            idle = not self._wanted
        if idle:
            self._end_process()
        with self._changed:
            while not (self._wanted or self._closing):
                self._changed.wait(self._until_again())
                self._want_again()
            return None if self._closing else self._wanted[0]

    def _until_again(self) -> float | None:
        """Return the seconds to the next module that is tried again; None if there is none."""
        return max(0.0, self._again[0].when - time.monotonic()) if self._again else None

    def _want_again(self) -> None:
        while self._again and self._again[0].when <= time.monotonic():
            self._wanted.append(self._again.pop(0).group)

    def _file(self, group: Group) -> Path:
        """Return the module's file. Raises what `CompileProcess.results` raises."""
        if (file := self._builder.find(group)) is not None:
            return file
        # Started without the lock, for which the engine's thread may wait: a process takes long to start.
        process = self._process or self._builder.process(parallel=1, background=True)
        with self._changed:
            self._process = process  # from now on `close` can kill it
            if self._closing:
                raise CompileError("the runner closes")
        process.request(group)
        (built,) = process.results(1)
        return built.file

    def _end_process(self) -> None:
        with self._changed:
            process, self._process = self._process, None
        if process is not None:
            process.close()


class GraphRegistry(ModuleRegistry):
    """The graphs of a decoder."""

    def __init__(self, builder: Builder, load: Callable[[Path], Module], retry_s: float = RETRY_S) -> None:
        """See `ModuleRegistry`."""
        super().__init__(builder, load, retry_s)
        self.builder = builder
