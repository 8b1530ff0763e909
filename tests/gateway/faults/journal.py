"""The life of a stream as a table: every step that it may take, and a witness of those that the real code takes."""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.sequence import LiveSequence
from protocol.commands import Submit


class Phase(StrEnum):
    """The place of a stream."""

    NEW = "new"
    PLACED = "placed"
    """On a worker."""
    LOST = "lost"
    """Its worker is gone, and nobody has decided yet what becomes of it."""
    WAITING = "waiting"
    ENDED = "ended"


LIFE: dict[tuple[Phase, str], Phase] = {
    (Phase.NEW, "place"): Phase.PLACED,
    (Phase.NEW, "wait"): Phase.WAITING,
    (Phase.PLACED, "push"): Phase.PLACED,
    (Phase.PLACED, "place"): Phase.PLACED,  # refused as a new request, and given to another worker at once
    (Phase.PLACED, "wait"): Phase.WAITING,  # refused by a worker that was to go on with it
    (Phase.PLACED, "leave"): Phase.LOST,
    (Phase.PLACED, "finish"): Phase.ENDED,
    (Phase.PLACED, "fail"): Phase.ENDED,
    (Phase.PLACED, "cancel"): Phase.ENDED,
    (Phase.LOST, "wait"): Phase.WAITING,
    (Phase.LOST, "fail"): Phase.ENDED,  # the failure is attributed to it
    (Phase.WAITING, "place"): Phase.PLACED,
    (Phase.WAITING, "fail"): Phase.ENDED,
    (Phase.WAITING, "cancel"): Phase.ENDED,
}


class Journal:
    """Follows every stream through the calls that change it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: Counter[tuple[Phase, str]] = Counter()
        self.illegal: list[str] = []
        """Steps that are not in the table. They are not raised: a timer's callback would swallow them."""
        self._phases: dict[LiveSequence, Phase] = {}
        self._kinds: dict[LiveSequence, list[tuple[str, str]]] = {}
        for name in ("place", "push", "leave", "finish", "fail", "cancel"):
            self._watch(monkeypatch, LiveSequence, name, lambda sequence, *_: sequence, name)
        self._watch(monkeypatch, WaitQueue, "add", lambda _, sequence: sequence, "wait")

    def _watch(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, of: Callable[..., LiveSequence], step: str
    ) -> None:
        real = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            self._step(of(*arguments), step)
            if step == "place":
                self._place(*arguments)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    def _step(self, sequence: LiveSequence, step: str) -> None:
        before = self._phases.get(sequence, Phase.NEW)
        after = LIFE.get((before, step))
        if after is None:
            self.illegal.append(f"{step} of a stream that is {before}")
            return
        self.taken[before, step] += 1
        self._phases[sequence] = after

    def _place(self, sequence: LiveSequence, _: Submit, __: str, kind: tuple[str, str], ___: int) -> None:
        kinds = self._kinds.setdefault(sequence, [])
        if not sequence.tokens:
            kinds.clear()  # nothing has come of where it was before
        kinds.append(kind)

    def forget(self) -> None:
        """Forget the sequences, which have ended. Hypothesis keeps a state machine as long as the process lives."""
        self._phases.clear()
        self._kinds.clear()

    def mixed(self, sequence: LiveSequence) -> bool:
        """Workers of several kinds had it, the second one when there were tokens already."""
        return len(set(self._kinds.get(sequence, ()))) > 1

    def phase(self, sequence: LiveSequence) -> Phase:
        """The place where it must be now."""
        return self._phases.get(sequence, Phase.NEW)
