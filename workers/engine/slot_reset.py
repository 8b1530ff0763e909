"""Resets released slots on the runner, so that no sequence reads what another one left behind."""

import contextlib
from collections.abc import Callable, Collection, Iterator

from protocol.errors import ErrorCode
from workers.engine.kv_slots import SlotTable
from workers.engine.request import RequestRefused
from workers.engine.runner import Runner

NO_STREAM = -1
"""Holds a slot that belongs to no request; streams are not negative."""


class SlotResets:
    """Calls the runner's `reset` for dirty slots. A slot whose reset fails stays dirty, and the next step tries
    again."""

    def __init__(self, runner: Runner, slots: SlotTable, on_failure: Callable[[int, Exception], None]) -> None:
        """`on_failure` receives the slot and the error of a failed reset."""
        self._runner = runner
        self._slots = slots
        self._on_failure = on_failure

    def reset(self, slot: int) -> None:
        """Reset a dirty slot and mark it clean."""
        try:
            self._runner.reset(slot)
        except Exception as error:  # noqa: BLE001 - any error of a device must cost this slot only
            self._on_failure(slot, error)
            return
        self._slots.clean(slot)

    def reset_dirty(self) -> None:
        """Reset all dirty slots."""
        for slot in self._slots.dirty:
            self.reset(slot)

    def reset_others(self, than: Collection[int]) -> None:
        """Reset all dirty slots but these, whose reset has failed in this step."""
        for slot in self._slots.dirty:
            if slot not in than:
                self.reset(slot)

    @contextlib.contextmanager
    def borrow(self, rows: int) -> Iterator[int]:
        """Hold a slot outside of the schedule, evicting retained ones if necessary; it is reset afterwards.

        Raises `RequestRefused` (OVERLOADED) if sequences hold all slots or too much of the cache.
        """
        while (slot := self._slots.take(NO_STREAM, rows)) is None:
            if self._slots.oldest is None:
                raise RequestRefused(ErrorCode.OVERLOADED, "no slot is free outside of the schedule: try again later")
            retained = self._slots.oldest
            self._slots.evict(retained)
            self.reset(retained)
        try:
            yield slot
        finally:
            self._slots.release(slot)
            self.reset(slot)
