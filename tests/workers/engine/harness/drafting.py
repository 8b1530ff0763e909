"""Speculators that verify all drafts, whatever they cost."""

from collections.abc import Callable, Sequence

from workers.engine.runner import RunnerCapabilities
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.loss_budget import LossBudget
from workers.engine.speculation.speculator import Speculator
from workers.engine.speculation.step_costs import StepCosts


def always(
    capabilities: RunnerCapabilities,
    make: Callable[[EngineSequence], Sequence[Drafter]] | None = None,
    *,
    batched: BatchDrafting | None = None,
    beside_prompts: bool = False,
    fits: Callable[[int], bool] | None = None,
) -> Speculator:
    """A speculator to which every draft is worth its rows, those of the first sequences before others."""
    return Speculator(
        capabilities,
        make,
        _as_long_as_possible,
        batched=batched,
        budget=Unlimited(),
        beside_prompts=beside_prompts,
        fits=fits,
        clock=lambda: 0.0,
    )


class Known:
    """Drafts given tokens by the length of the answer."""

    def __init__(self, sequence: EngineSequence, answer: Sequence[int]) -> None:
        self._sequence = sequence
        self._answer = answer

    def draft(self, most: int) -> Sequence[int]:
        at = self._sequence.completion_tokens
        return self._answer[at : at + most]


def known(answer: Sequence[int]) -> Callable[[EngineSequence], list[Drafter]]:
    """Return what makes drafters that draft these tokens of an answer."""

    def make(sequence: EngineSequence) -> list[Drafter]:
        return [Known(sequence, answer)]

    return make


class Unlimited(LossBudget):
    """A budget that is never spent."""

    def step(self, seconds: float, gained: float = 0.0, steps: int = 1) -> int:
        """Return no rest."""
        return 0


def _as_long_as_possible(
    _costs: StepCosts, drafts: Sequence[tuple[int, float, float]], most: int, _stake: float
) -> list[int]:
    room, lengths = most - len(drafts), []
    for length, *_ in drafts:
        lengths.append(min(length, room))
        room -= lengths[-1]
    return lengths
