"""Runs the command `baton` with a watchdog on its event loop: `python -m tests.attacks.watched TURNS serve ...`."""

import os
import sys
from pathlib import Path

from bench.harness.loop_watchdog import LoopWatchdog


def main() -> None:
    """Install the watchdog, then run the command."""
    turns, *words = sys.argv[1:]
    LoopWatchdog(Path(turns)).install()
    sys.argv = ["baton", *words]
    sys.path.insert(0, os.getcwd())
    from cli.main import run

    run()


if __name__ == "__main__":
    main()
