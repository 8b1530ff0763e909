"""Reads snapshots of states from slots, and starts sequences with them."""

import structlog

from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence, PrefixCopy
from workers.engine.states.prefix_states import PrefixStates


class SlotSnapshots:
    """Used by the engine's thread, between two calls. `states` None: the model has no state beside its rows."""

    def __init__(self, runner: Runner, states: PrefixStates | None) -> None:
        self._runner = runner
        self._states = states
        self._log = structlog.get_logger()

    def copy(self, copy: PrefixCopy) -> None:
        """Make a copy of rows, with the recurrent state after them. Raises what the runner raises."""
        self._runner.copy_prefix(copy.source, copy.target, copy.length)
        if copy.snapshot is not None:
            self._runner.write_state(copy.target, copy.snapshot.state)

    def take(self, sequence: EngineSequence) -> None:
        """Take a snapshot after a chunk of a sequence, if one is wanted there. If it cannot be read, later sequences
        compute more."""
        if self._states is not None and self._states.wants(sequence):
            self._take(self._states, sequence)

    def take_decoded(self, sequence: EngineSequence) -> None:
        """Take a snapshot after a decoded token, if the prefix tier wants one there."""
        if self._states is not None and self._states.wants_decoded(sequence):
            self._take(self._states, sequence)

    def write(self, slot: int, rows: int, state: bytes) -> None:
        """Write the state of another worker after the `rows` of a slot. Raises what the runner raises."""
        self._runner.write_state(slot, state)
        if self._states is not None:
            self._states.restored(slot, rows)

    def read(self, sequence: EngineSequence) -> bytes | None:
        """Return the state after the rows of a sequence; None if it cannot be read."""
        try:
            # Rows of a rejected draft may lie behind its own.
            return bytes(self._runner.read_state(sequence.slot, sequence.cached.rows))
        except Exception as error:  # noqa: BLE001 - any error of a device: the sequence itself is not concerned
            self._log.error("state_not_read", stream=sequence.request.stream, slot=sequence.slot, exc_info=error)
            return None

    def _take(self, states: PrefixStates, sequence: EngineSequence) -> None:
        if (state := self.read(sequence)) is not None:
            states.taken(sequence, state)
