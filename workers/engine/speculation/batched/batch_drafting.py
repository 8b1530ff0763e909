"""Decides for which sequences a drafter with a state drafts, and learns from what became of it. Pure, but for the log.

A sequence is drafted for once the drafter has computed its tokens. That is done a chunk at a time, between steps, if
the answer may go on for long enough to gain more.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog

from workers.engine.sequence import EngineSequence
from workers.engine.speculation.acceptance import Acceptance
from workers.engine.speculation.batched.batch_drafter import BatchDrafter
from workers.engine.speculation.batched.draft_budget import DraftBudget
from workers.engine.speculation.batched.draft_costs import DraftCosts
from workers.engine.speculation.batched.joint_lengths import ChosenLengths, Offer, joint_lengths
from workers.engine.speculation.batched.open_draft import OpenDraft
from workers.engine.speculation.batched.preparation import Lacking, worth_preparing
from workers.engine.speculation.mtp.head_upkeep import HeadUpkeep
from workers.engine.speculation.step_costs import StepCosts

MAX_LENGTH = 8
"""The most tokens of a draft."""
PROBE_LENGTH = 2
"""Tokens of a draft that is made only to measure how many are accepted."""
LIKELY_TOKENS = 64
"""Tokens that an answer is expected to go on for, at least; one that is longer, for as many as it has."""
MOST = 0.5
"""The part of a sequence's last tokens from which on look-ups draft most of them."""
MAX_PAUSE = 16
"""The most steps without a look at what may be drafted, after steps in which nothing was."""

Choice = Callable[[StepCosts, Callable[[int], float], Sequence[Offer], int], ChosenLengths]


class _Step(NamedTuple):
    """The step that is planned: see `BatchDrafting.plan`."""

    costs: StepCosts
    decoding: Sequence[EngineSequence]
    known: Sequence[Offer]
    most: Sequence[int]
    rows: int


class BatchPlan(NamedTuple):
    """Drafts that a step verifies, by the index of the sequence."""

    lengths: Sequence[int]
    """Tokens of the drafts that there were before."""
    drafted: Mapping[int, OpenDraft]
    """Drafts that were made for this step."""


class BatchDrafting:
    """Owns a drafter, and what is measured of it."""

    def __init__(
        self,
        drafter: BatchDrafter,
        relative_cost: float,
        choose: Choice = joint_lengths,
        clock: Callable[[], float] = time.perf_counter,
        upkeep: HeadUpkeep | None = None,
    ) -> None:
        """`relative_cost` is the assumed cost of drafting a token, relative to a step of the target. `clock` measures
        the drafter. `upkeep` decides what a drafter follows that costs time in every step."""
        self._drafter = drafter
        self._choose = choose
        self._clock = clock
        self._costs = DraftCosts(relative_cost)
        self._budget = DraftBudget()
        self._acceptance = Acceptance()
        self._rates: dict[EngineSequence, Acceptance] = {}
        self._upkeep = upkeep
        self._paid_s = 0.0
        """Time to draft for the present step."""
        self._pause = 1
        self._steps_to_wait = 0
        self._rows = self._tokens = 0
        """Drafted and accepted tokens of the present step."""
        self._log = structlog.get_logger()
        self.failures = 0
        """1 once the drafter has failed: it drafts nothing any more."""

    def follow(self, decoding: Sequence[EngineSequence]) -> None:
        """Forget all other sequences. Called before each step."""
        if self.failures:
            return
        if self._rates:
            current = set(decoding)
            self._rates = {each: rate for each, rate in self._rates.items() if each in current}
        try:
            self._drafter.follow(decoding)
        except Exception as error:  # noqa: BLE001 - an error of a drafter must not end the streams
            self._failed(error)

    @property
    def rests(self) -> bool:
        """Nothing can be drafted now."""
        return self._upkeep is not None and self._upkeep.rests

    def due(self) -> bool:
        """Return whether to plan in this step."""
        if self.failures or self.rests or not self._budget.allows_drafts:
            return False
        self._steps_to_wait -= 1
        return self._steps_to_wait < 0

    def plan(
        self,
        costs: StepCosts,
        decoding: Sequence[EngineSequence],
        known: Sequence[Offer],
        most: Sequence[int],
        rows: int,
    ) -> BatchPlan | None:
        """Draft for sequences with which a step of up to `rows` rows gets more tokens a second.

        `known` are the drafts that there are already; up to `most` tokens of each sequence may be drafted. None if the
        drafter fails.
        """
        began, step = self._clock(), _Step(costs, decoding, known, most, rows)
        try:
            prepared, planned = self._prepare(step), self._plan(step)
        except Exception as error:  # noqa: BLE001 - an error of a drafter must not end the streams
            self._failed(error)
            return None
        self._pause = 1 if prepared or planned.drafted else min(2 * self._pause, MAX_PAUSE)
        self._steps_to_wait = self._pause - 1
        self._paid_s = self._clock() - began
        self._budget.pay(self._paid_s)
        return planned

    def verified(self, sequence: EngineSequence, drafted: int, accepted: int) -> None:
        """Record a draft of so many tokens, of which so many were accepted."""
        self._rows += drafted
        self._tokens += accepted
        known = self._rates.get(sequence)
        if known is None:
            known = self._rates[sequence] = Acceptance(self._acceptance)
        known.record(drafted, accepted)

    def record_step(self, costs: StepCosts, seconds: float, sequences: int, rows: int) -> float:
        """Record a step of the target with so many rows of so many sequences. Returns the seconds that its drafts of
        this drafter have gained of it, without the time to draft them."""
        drafted, accepted, self._rows, self._tokens = self._rows, self._tokens, 0, 0
        alone, gained = costs.measured(sequences), 0.0
        if drafted and alone:
            without = alone if rows - drafted == sequences else costs.of(rows - drafted)
            gained = alone * accepted / sequences - (costs.of(rows) - without)
        self._budget.step(seconds if alone is None else alone, gained)
        if self._upkeep is not None and not self.failures:
            self._keep_up(self._upkeep, alone, gained)
        return gained

    def _keep_up(self, upkeep: HeadUpkeep, alone: float | None, gained: float) -> None:
        paid, self._paid_s = self._paid_s, 0.0
        if upkeep.step(alone or 0.0, gained - paid):
            self._acceptance, self._budget = Acceptance(), DraftBudget()
            self._rates.clear()
            self._steps_to_wait, self._pause = 0, 1

    def settle(self) -> None:
        """Wait for the drafter's background work."""
        self._drafter.settle()

    def close(self) -> None:
        """Close the drafter."""
        self._drafter.close()

    def _plan(self, step: _Step) -> BatchPlan:
        costs, decoding, known, most, rows = step
        offers = [
            self._offer(sequence, offer, room) for sequence, offer, room in zip(decoding, known, most, strict=True)
        ]
        lengths = self._choose(costs, self._step_cost(costs, len(decoding)), offers, rows).lengths
        if not any(lengths):
            lengths = self._probe(offers) or lengths
        wanted = {at: length for at, length in enumerate(lengths) if length and offers[at].batched}
        return BatchPlan(
            [0 if offer.batched else length for offer, length in zip(offers, lengths, strict=True)],
            self._draft({at: (decoding[at], length) for at, length in wanted.items()}),
        )

    def _offer(self, sequence: EngineSequence, known: Offer, most: int) -> Offer:
        """Return what may be drafted for a sequence: by the drafter, if it is ready and is more often right."""
        if not most or self._likelier(known, sequence) or self._drafter.missing(sequence):
            return known
        room = min(most, self._drafter.room(sequence))
        return self._own_offer(sequence, room) if room else known

    def _own_offer(self, sequence: EngineSequence, most: int) -> Offer:
        own = self._acceptance_of(sequence)
        return Offer(min(most, MAX_LENGTH), own.first, own.rate, batched=True)

    def _likelier(self, known: Offer, sequence: EngineSequence) -> bool:
        """Return whether a known draft is right at least as often as those of the drafter."""
        return known.length > 0 and known.first >= self._acceptance_of(sequence).first

    def _looked_up(self, sequence: EngineSequence, known: Offer) -> bool:
        """Return whether a sequence has no use for the drafter: a likelier draft is known, or most of its last tokens
        were drafted by look-ups."""
        drafts = sequence.drafts
        return self._likelier(known, sequence) or (drafts is not None and drafts.recent_share > MOST)

    def _probe(self, offers: Sequence[Offer]) -> list[int] | None:
        """Return lengths for a step in which nothing is drafted otherwise, if it is time to try again."""
        at = next((at for at, offer in enumerate(offers) if offer.batched), None)
        if at is None or not self._budget.allows_probe:
            return None
        self._budget.probed()
        lengths = [0] * len(offers)
        lengths[at] = min(PROBE_LENGTH, offers[at].length)
        return lengths

    def _draft(self, wanted: Mapping[int, tuple[EngineSequence, int]]) -> dict[int, OpenDraft]:
        """Draft up to so many tokens for each of some sequences. Returns their drafts, which are closed."""
        opened: dict[int, OpenDraft] = {}
        began = self._clock()
        try:
            for at, (sequence, most) in wanted.items():
                if (draft := OpenDraft.of(sequence, most)) is not None:
                    opened[at] = draft
            if opened:
                self._drafter.draft(list(opened.values()))
        finally:
            for draft in opened.values():
                draft.close()
        if steps := max((len(each.tokens) for each in opened.values()), default=0):
            self._costs.record_draft(len(opened), steps, self._clock() - began)
        return {at: draft for at, draft in opened.items() if draft.tokens}

    def _prepare(self, step: _Step) -> bool:
        """Compute some of the tokens that the drafter lacks, of sequences for which it is worth it, those that lack
        least first. The call takes about as long as a step at most. Returns whether any were computed."""
        decoding, alone = step.decoding, step.costs.measured(len(step.decoding))
        lacking = [
            (missing, at)
            for at, (sequence, offer, room) in enumerate(zip(decoding, step.known, step.most, strict=True))
            if room
            and (missing := self._drafter.missing(sequence))
            and not self._looked_up(sequence, offer)
            and self._drafter.room(sequence)
        ]
        if not lacking or not alone:
            return False
        token_s = self._costs.prepared(1) or 0.0
        tokens = max(1, int(alone / token_s)) if token_s else 1
        saved = self._saved(step, alone)
        described = [Lacking(missing, _tokens_left(decoding[at]), saved[at]) for missing, at in lacking]
        worth = [decoding[lacking[index][1]] for index in worth_preparing(described, token_s, tokens)]
        if not worth and self._budget.allows_probe:
            worth = [decoding[min(lacking)[1]]]
        if not worth:
            return False
        began = self._clock()
        if count := self._drafter.prepare(worth, tokens):
            self._costs.record_prepared(count, self._clock() - began)
        return True

    def _saved(self, step: _Step, alone: float) -> list[float]:
        """Return the seconds that drafts of each sequence may save for each of its tokens, beside the drafts that are
        `known`, once all of them are ready. `alone` is the time of a step without any."""
        costs, decoding, known, most, rows = step
        offers = [
            offer if self._looked_up(sequence, offer) else self._own_offer(sequence, room)
            for sequence, offer, room in zip(decoding, known, most, strict=True)
        ]
        step_cost = self._step_cost(costs, len(decoding))
        chosen = self._choose(costs, step_cost, offers, rows)
        drafting = [bool(length) and offer.batched for offer, length in zip(offers, chosen.lengths, strict=True)]
        if not any(drafting):
            return [0.0] * len(decoding)
        without = self._choose(costs, step_cost, known, rows).speed if any(each.length for each in known) else 1.0
        saved = alone * max(0.0, 1.0 / without - 1.0 / chosen.speed) / sum(drafting)
        return [saved if drafts else 0.0 for drafts in drafting]

    def _step_cost(self, costs: StepCosts, sequences: int) -> Callable[[int], float]:
        """Return the cost of drafting a token for each of some sequences, as a function of their number."""
        target_s = costs.measured(sequences) or 0.0
        return lambda count: self._costs.step(count, target_s)

    def _acceptance_of(self, sequence: EngineSequence) -> Acceptance:
        return self._rates.get(sequence, self._acceptance)

    def _failed(self, error: Exception) -> None:
        self.failures = 1
        self._log.error("drafter_failed", drafter=type(self._drafter).__name__, exc_info=error)


def _tokens_left(sequence: EngineSequence) -> int:
    """Return how many tokens an answer is expected to go on for."""
    return min(sequence.max_length - len(sequence.tokens), max(LIKELY_TOKENS, sequence.completion_tokens))
