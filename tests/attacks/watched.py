"""Runs the command `baton` with a watchdog on its event loop: `python -m tests.attacks.watched TURNS serve ...`.

A turn is one callback of the loop. The file TURNS gets a line for each turn that was longer than every one before it:
its CPU time and its wall-clock time in milliseconds, and what ran. SIGUSR2 empties the file, so that the start of the
server does not count.

The variable ATTACKED_SETTINGS, a JSON object, replaces defaults of `GatewaySettings` for which the command has no
option.
"""

import asyncio.events
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType


class Watchdog:
    """Measures the turns of the loops of this process."""

    def __init__(self, turns: Path) -> None:
        self._turns = turns
        self._longest_ns = 0
        self._run = asyncio.events.Handle._run  # every callback goes through it
        turns.write_text("")

    def install(self) -> None:
        """Watch from now on."""
        run, measured = self._run, self._note

        def watched_run(handle: asyncio.Handle) -> None:
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            run(handle)
            spent = time.thread_time_ns() - cpu
            if spent > self._longest_ns:
                measured(handle, spent, time.perf_counter_ns() - wall)

        asyncio.events.Handle._run = watched_run  # type: ignore[method-assign,assignment]
        signal.signal(signal.SIGUSR2, self._restart)

    def _note(self, handle: asyncio.Handle, cpu_ns: int, wall_ns: int) -> None:
        self._longest_ns = cpu_ns
        owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
        ran = owner.get_coro() if isinstance(owner, asyncio.Task) else handle._callback  # type: ignore[attr-defined]
        with self._turns.open("a") as file:
            file.write(f"{cpu_ns / 1e6:.1f} {wall_ns / 1e6:.1f} {getattr(ran, '__qualname__', ran)}\n")

    def _restart(self, number: int, frame: FrameType | None) -> None:
        self._longest_ns = 0
        self._turns.write_text("")


def main() -> None:
    """Install the watchdog, then run the command."""
    turns, *words = sys.argv[1:]
    Watchdog(Path(turns)).install()
    sys.argv = ["baton", *words]
    sys.path.insert(0, os.getcwd())
    from cli.main import run
    from gateway.settings import GatewaySettings

    defaults = GatewaySettings.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(json.loads(os.environ.get("ATTACKED_SETTINGS", "{}")))
    run()


if __name__ == "__main__":
    main()
