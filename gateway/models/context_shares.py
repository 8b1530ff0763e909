"""Divides a memory budget among the contexts of several models, for those whose context is left open."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FRACTION_BITS = 3
"""Contexts are rounded down to an eighth of a power of two, so that a little more or less memory changes none of them:
graphs are compiled for a context."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory of all workers of a model, by its context."""

    fixed: int
    """Bytes that do not depend on the context: the weights."""
    row_bytes: int
    """Bytes of the KV cache of one token, in all workers."""
    least_rows: int
    """Tokens of KV cache that it has in any case."""
    least: int
    """Tokens of the least context."""
    most: int
    """Tokens of the largest one; equal to `least` if nothing is open."""
    at_start: bool = False
    """It is loaded with the server."""

    def rows(self, context: int) -> int:
        """Tokens of KV cache with a context: one sequence of the whole context fits."""
        return max(self.least_rows, context)

    def bytes(self, context: int) -> int:
        """Bytes with a context and a full KV cache."""
        return self.fixed + self.row_bytes * self.rows(context)


def choose_contexts(models: Sequence[ModelMemory], budget: float) -> list[int]:
    """Return the context of each model: its largest one, as far as that takes no memory that others need.

    The contexts rise together, step by step (progressive filling, which is fair in the max-min sense: Bertsekas and
    Gallager, Data Networks, 6.5.2). A model stops where it would no longer fit into the budget together with those
    models that fit beside it with the least context of all. These are, in this order, the models of the start and the
    smallest others. So models that fit together with the least contexts stay together, and one that leaves no room for
    any other has the whole budget.
    """
    chosen = [_first(model) for model in models]
    groups = [_beside(index, models, budget) for index in range(len(models))]
    rising = {index for index, model in enumerate(models) if chosen[index] < model.most}
    for level in _levels(max((model.most for model in models), default=0)):
        for index in sorted(rising):
            model = models[index]
            wanted = min(level, model.most)
            if wanted <= chosen[index]:
                continue
            raised = [*chosen[:index], wanted, *chosen[index + 1 :]]
            if all(_bytes(models, raised, group) <= budget for group in groups if index in group):
                chosen = raised
            else:
                rising.discard(index)
            if wanted == model.most:
                rising.discard(index)
    return chosen


def rounded(tokens: int) -> int:
    """Round down to an eighth of a power of two."""
    unit = 1 << max(0, tokens.bit_length() - 1 - FRACTION_BITS)
    return tokens // unit * unit


def _first(model: ModelMemory) -> int:
    """The context that its least KV cache holds anyway."""
    return model.most if model.least_rows >= model.most else max(model.least, rounded(model.least_rows))


def _beside(index: int, models: Sequence[ModelMemory], budget: float) -> set[int]:
    """The models that fit into the budget together with this one, with the least contexts."""
    group, used = {index}, models[index].bytes(models[index].least)
    others = [other for other in range(len(models)) if other != index]
    for other in sorted(others, key=lambda each: (not models[each].at_start, models[each].bytes(models[each].least))):
        needed = models[other].bytes(models[other].least)
        if used + needed <= budget:
            group.add(other)
            used += needed
    return group


def _bytes(models: Sequence[ModelMemory], contexts: Sequence[int], group: set[int]) -> int:
    return sum(models[index].bytes(contexts[index]) for index in group)


def _levels(most: int) -> Iterator[int]:
    """Every eighth of a power of two from 8 on, until one is `most` or more."""
    unit = 1
    while True:
        for eighths in range(8, 16):
            yield unit * eighths
            if unit * eighths >= most:
                return
        unit *= 2
