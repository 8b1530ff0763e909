"""A watchdog that measures how long the turns of an event loop take, inside the process that runs it."""

import asyncio
import asyncio.events
import gc
import signal
import time
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self


class LongestTurn(NamedTuple):
    """The longest turn of an event loop: one callback. Times are in milliseconds."""

    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    gc_ms: float = 0.0
    """Wall-clock time of garbage collections in it."""
    ran: str = ""

    @classmethod
    def read(cls, file: Path) -> Self:
        """The longest turn that a watchdog wrote into `file`; zeros if none."""
        lines = file.read_text().splitlines()
        if not lines:
            return cls()
        cpu, wall, gc_time, ran = lines[-1].split(" ", 3)
        return cls(float(cpu), float(wall), float(gc_time), ran)


class LoopWatchdog:
    """Measures the turns of all event loops of this process.

    Its file gets a line for each turn that took more CPU time than every one before it. SIGUSR2 empties the file, so
    that the start of a program does not count. CPU time is compared, since the wall-clock time of a turn includes what
    other processes run meanwhile.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._longest_ns = 0
        self._collected_ns = 0
        """Time of all garbage collections so far."""
        self._collects_since = 0
        file.write_text("")

    def install(self) -> None:
        """Measure from now on. Call it in the main thread."""
        run = asyncio.events.Handle._run  # every callback of a loop goes through it

        def measured_run(handle: asyncio.Handle) -> None:
            callback = handle._callback  # type: ignore[attr-defined]  # none afterwards, if the handle is cancelled
            cpu, wall, collected = time.thread_time_ns(), time.perf_counter_ns(), self._collected_ns
            run(handle)
            spent = time.thread_time_ns() - cpu
            if spent > self._longest_ns:
                self._note(callback, spent, time.perf_counter_ns() - wall, self._collected_ns - collected)

        asyncio.events.Handle._run = measured_run  # type: ignore[method-assign,assignment]
        gc.callbacks.append(self._on_collection)
        signal.signal(signal.SIGUSR2, self._restart)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collects_since = now
        else:
            self._collected_ns += now - self._collects_since

    def _note(self, callback: object, cpu_ns: int, wall_ns: int, gc_ns: int) -> None:
        self._longest_ns = cpu_ns
        owner = getattr(callback, "__self__", None)
        ran = owner.get_coro() if isinstance(owner, asyncio.Task) else callback
        with self._file.open("a") as file:
            file.write(
                f"{cpu_ns / 1e6:.1f} {wall_ns / 1e6:.1f} {gc_ns / 1e6:.1f} {getattr(ran, '__qualname__', ran)}\n"
            )

    def _restart(self, number: int, frame: FrameType | None) -> None:
        self._longest_ns = 0
        self._file.write_text("")
