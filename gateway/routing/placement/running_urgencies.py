"""The urgencies of the sequences that workers have: what a more urgent one may preempt. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from gateway.routing.sequence import LiveSequence
from protocol.scheduling import Urgency, may_preempt

T = TypeVar("T")


class _ModelUrgencies:
    __slots__ = ("clients", "levels")

    def __init__(self) -> None:
        self.levels: Counter[int] = Counter()
        self.clients: dict[str, Counter[Urgency]] = {}


class RunningUrgencies:
    """Counts them, so that a request that preempts nobody need not look at the workers."""

    def __init__(self, running: Iterable[LiveSequence]) -> None:
        self._counted: set[LiveSequence] = set()
        self._models: dict[str, _ModelUrgencies] = {}
        for sequence in running:
            self.add(sequence)

    def add(self, sequence: LiveSequence) -> None:
        """Note that a worker got a sequence."""
        if sequence in self._counted:
            return
        self._counted.add(sequence)
        model, terms = self._models.setdefault(sequence.request.model, _ModelUrgencies()), sequence.terms
        model.levels[terms.urgency.level] += 1
        model.clients.setdefault(terms.client, Counter())[terms.urgency] += 1

    def remove(self, sequence: LiveSequence) -> None:
        """Note that no worker has a sequence any more. Repeatable."""
        if sequence not in self._counted:
            return
        self._counted.remove(sequence)
        name, terms = sequence.request.model, sequence.terms
        model = self._models[name]
        own = model.clients[terms.client]
        _subtract(model.levels, terms.urgency.level)
        _subtract(own, terms.urgency)
        if not own:
            del model.clients[terms.client]
            if not model.clients:
                del self._models[name]

    def below(self, sequence: LiveSequence) -> tuple[bool, bool]:
        """A sequence of a less urgent class runs, and a less urgent one of the same client."""
        model, terms = self._models.get(sequence.request.model), sequence.terms
        if model is None:
            return False, False
        other = max(model.levels) > terms.urgency.level
        own = any(may_preempt(terms.urgency, each, same_client=True) for each in model.clients.get(terms.client, ()))
        return other, own


def _subtract(counts: Counter[T], key: T) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
