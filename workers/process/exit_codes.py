"""Exit codes of a worker process."""

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
"""Code 2 is reserved for invalid arguments."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """End of a worker. `stuck`: the engine thread is inside a call of the device that does not return."""

    reason: ByeReason
    stuck: bool

    @property
    def exit_code(self) -> int:
        """Exit code of the process."""
        return EXIT_CODES[self.reason]
