"""Reads snapshots of recurrent states from slots, and starts sequences with them."""

import structlog

from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence, PrefixCopy
from workers.engine.states.prefix_states import PrefixStates


class SlotSnapshots:
    """Used by the engine's thread, between two calls. `states` None: the model has no recurrent state."""

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
        if self._states is None or not self._states.wants(sequence):
            return
        try:
            state = bytes(self._runner.read_state(sequence.slot))
        except Exception as error:  # noqa: BLE001 - any error of a device: the sequence itself is not concerned
            self._log.error("state_not_read", stream=sequence.request.stream, slot=sequence.slot, exc_info=error)
            return
        self._states.taken(sequence, state)
