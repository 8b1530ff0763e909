"""Drafting by a model that verifies all drafts, whatever they cost."""

from collections.abc import Callable, Sequence

from workers.engine.runner import Runner, RunnerCapabilities
from workers.engine.speculation.batched.batch_drafter import BatchDrafter
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.engine.speculation.batched.joint_lengths import ChosenLengths, Offer
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.mtp.mtp_drafter import MAX_TOKENS, MtpDrafter
from workers.engine.speculation.speculator import Speculator
from workers.engine.speculation.step_costs import StepCosts


def always_by(drafting: BatchDrafting, capabilities: RunnerCapabilities, *, beside_prompts: bool = False) -> Speculator:
    """A speculator to which every draft of a model is worth its rows, and that drafts nothing else."""
    return Speculator(
        capabilities, lambda _: [_Nothing()], batched=drafting, beside_prompts=beside_prompts, clock=lambda: 0.0
    )


def drafting_by_head(runner: Runner) -> BatchDrafting:
    """Drafts by the head for multi-token prediction of a runner."""
    assert runner.draft_head is not None
    return drafting_by(MtpDrafter(runner.draft_head), lambda: MAX_TOKENS)


def drafting_with(runner: Runner, length: Callable[[], int] = lambda: 4) -> BatchDrafting:
    """Drafts by a model on a runner, of as many tokens as `length` says."""
    return drafting_by(DraftModel(runner), length)


def drafting_by(drafter: BatchDrafter, length: Callable[[], int]) -> BatchDrafting:
    """Drafts of as many tokens as `length` says."""

    def choose(costs: StepCosts, _step: Callable[[int], float], offers: Sequence[Offer], most: int) -> ChosenLengths:
        room, lengths = most - len(offers), []
        for offer in offers:
            lengths.append(min(offer.length, room, length()))
            room -= lengths[-1]
        return ChosenLengths(lengths, 2.0)

    return BatchDrafting(drafter, 0.1, choose, clock=lambda: 0.0)


class _Nothing(Drafter):
    def draft(self, most: int) -> Sequence[int]:
        return ()
