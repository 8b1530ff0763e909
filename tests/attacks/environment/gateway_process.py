"""A gateway over scripted workers, as a process that a test can stop, starve and trick.

Run as `python gateway_process.py ENVIRONMENT`, JSON of the fields of `Surroundings`. Its port is its first line on
stdout.
"""

import sys
import time
from collections.abc import Callable

import anyio
import msgspec
from msgspec import Struct

from actors.process.logs import configure_logging
from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from gateway.daemon import run_daemon
from gateway.settings import GatewaySettings
from tests.gateway.harness.real import launch


class Surroundings(Struct, frozen=True):
    """The workers, their deadlines, and what is wrong with the clock."""

    workers: int = 1
    rate: float = 0.0
    load_seconds: float = 0.0
    deadline_s: float = 0.0
    """The deadlines of a worker, twice as long while it starts; 0: the default ones."""
    jump_s: float = 0.0
    """The wall clock jumps to and fro by so much with each look at it."""
    log_level: str = "info"

    def deadlines(self) -> Deadlines | None:
        each = self.deadline_s
        return Deadlines(hello=2 * each, loading=2 * each, heartbeat=each, idle=each, hang=each) if each else None


def disturb_clock(jump_s: float) -> None:
    """Let each look at the wall clock show another time, also in the libraries."""
    honest: Callable[[], float] = time.time
    looks: int = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return honest() + (jump_s if looks % 2 else -jump_s)

    time.time = look


async def main(given: Surroundings) -> None:
    workers = [
        launch(f"w{number}", rate=given.rate, load_seconds=given.load_seconds) for number in range(given.workers)
    ]
    await run_daemon(
        GatewaySettings(port=0),
        workers,
        on_listening=lambda host, port: print(port, flush=True),
        policy=RestartPolicy(first_delay_s=0.01),
        deadlines=given.deadlines(),
    )


if __name__ == "__main__":
    chosen = msgspec.json.decode(sys.argv[1], type=Surroundings)
    if chosen.jump_s:
        disturb_clock(chosen.jump_s)
    configure_logging("gateway", chosen.log_level, json=True)
    anyio.run(main, chosen)
