"""Runs the command `baton` with a watchdog on its event loop: `python -m tests.attacks.watched TURNS serve ...`.

The variable ATTACKED_SETTINGS, a JSON object, replaces defaults of `GatewaySettings` for which the command has no
option.
"""

import json
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
    from gateway.settings import GatewaySettings

    defaults = GatewaySettings.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(json.loads(os.environ.get("ATTACKED_SETTINGS", "{}")))
    run()


if __name__ == "__main__":
    main()
