"""How a worker process ended, for whoever started it."""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import ByeReason

EXIT_CODES: Mapping[ByeReason, int] = {
    ByeReason.STOPPED: 0,
    ByeReason.INTERNAL: 1,
    ByeReason.LOAD_FAILED: 3,
    ByeReason.STEPS_FAILED: 4,
    ByeReason.REFUSED: 5,
    ByeReason.ORPHANED: 6,
    ByeReason.PROTOCOL: 7,
    ByeReason.LOAD_REFUSED: 8,
}
"""2 is left to the command line."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How the worker ended. `stuck`: the engine thread is still inside the device and will not come back."""

    reason: ByeReason
    stuck: bool

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.reason]
