"""Drafts the tokens of a decode step, and learns from what became of them. Pure, but for the log.

The model samples at every drafted position by its own logits and noise, and a drafted token is accepted if it is the
one that was sampled: the tokens are those of decoding without drafts, both greedy and seeded. For tokens that are
drafted without probabilities no other rule accepts more (https://arxiv.org/abs/2211.17192).
"""

import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

import structlog

from workers.engine.runner import DecodeRow, RunnerCapabilities
from workers.engine.sequence import EngineSequence, decode_row
from workers.engine.speculation.acceptance import Acceptance
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.joint_lengths import Offer
from workers.engine.speculation.draft_lengths import draft_lengths
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.lookup_drafters import LookupDrafters
from workers.engine.speculation.loss_budget import LossBudget
from workers.engine.speculation.sequence_drafts import SequenceDrafts
from workers.engine.speculation.step_costs import StepCosts
from workers.sampling.sample_spec import SampleSpec

CALLS_S = 2e-6
"""The time of a look-up that is not measured: that of the calls and of the records of its step."""
NO_ROOM_REST = 4
"""Further steps without a look-up after one that has no room for drafts."""
OUTLIER = 2.0
"""The most that a look-up counts, or a step with drafts, relative to what these usually take."""
LOOKUPS = 16
"""Look-ups of which the time is averaged."""
LOOKUP_WEIGHT = 2.0
"""Weight of the time of a look-up: the step after it finds less in the CPU's caches."""


class Draft(NamedTuple):
    """The drafted tokens of a sequence, and how to sample after each of them."""

    tokens: Sequence[int] = ()
    specs: Sequence[SampleSpec] = ()
    batched: bool = False
    """It was drafted together with those of other sequences."""

    def rows(self, sequence: EngineSequence) -> list[DecodeRow]:
        """Return the rows of a sequence: that of its last token and those of the drafted ones."""
        first = decode_row(sequence)
        drafted = zip(self.tokens, self.specs, strict=True)
        return [
            first,
            *(
                DecodeRow(first.slot, token, first.start + at, first.position + at, spec, first.adapter)
                for at, (token, spec) in enumerate(drafted, 1)
            ),
        ]

    def accepted(self, sampled: Sequence[int | None]) -> int:
        """Return how many drafted tokens are those that the rows have sampled, up to the first other one."""
        pairs = enumerate(zip(self.tokens, sampled, strict=False))
        return next((at for at, (drafted, token) in pairs if drafted != token), len(self.tokens))


NO_DRAFT = Draft()


class Speculator:
    """Owns what is learned of steps and of all drafts; each sequence has its own `SequenceDrafts`."""

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        make_drafters: Callable[[EngineSequence], Sequence[Drafter]] | None = None,
        choose_lengths: Callable[
            [StepCosts, Sequence[tuple[int, float, float]], int, float], list[int]
        ] = draft_lengths,
        *,
        batched: BatchDrafting | None = None,
        budget: LossBudget | None = None,
        beside_prompts: bool = False,
        fits: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`make_drafters` are `LookupDrafters` by default, and `batched` drafts where nothing likelier is known.
        `budget` bounds what look-ups may lose; None is the usual one. `beside_prompts`: also in steps in which prompts
        wait, whose first tokens it delays. `fits` is that of the runner; without it a step has `decode_rows`. `clock`
        measures the time to draft. Raises `ValueError` for a runner that takes one row a slot."""
        if not capabilities.decode_rows:
            raise ValueError("decode_rows: the runner takes one row a slot in a decode step")
        if capabilities.state_bytes and capabilities.rollback_rows < 2:
            raise ValueError("rollback_rows: drafts cannot be taken back from the recurrent state")
        self._most = capabilities.decode_rows
        self._fits = fits
        self._most_looked_up = self._most if fits is None else max(self._most, capabilities.draft_rows)
        """Rows of a step with drafts of look-ups, if `fits`."""
        self._most_of_slot = self._most_looked_up - 1
        """Most tokens that are drafted for one sequence: all of its rows of a step can be taken back."""
        if capabilities.state_bytes:
            self._most_of_slot = min(self._most_looked_up, capabilities.rollback_rows) - 1
        self._costs = StepCosts()
        self._make_drafters = make_drafters or LookupDrafters()
        self._choose_lengths = choose_lengths
        self._batched = batched
        self._beside_prompts = beside_prompts
        self._clock = clock
        self._budget = budget or LossBudget()
        self._rest = 0
        """Further steps without a look-up: they pay for the last ones."""
        self._resting = 0
        """The number of them in all."""
        self._lookup_s = 0.0
        """Time of a look-up, a moving average; 0 before the first one."""
        self._looked_up = False
        """The present step verifies drafts of look-ups."""
        self._rates: dict[str, Acceptance] = {}
        self._log = structlog.get_logger()

    def plan(self, decoding: Sequence[EngineSequence], *, prompts: bool) -> list[Draft] | None:
        """Return the draft of each sequence in this step; None if there are none at all. `prompts`: some wait, or are
        prefilled."""
        drafting = self._batched if self._batched is not None and not self._batched.rests else None
        if self._rest and drafting is None:  # first: the usual case where a step takes some 100 microseconds
            return None
        if drafting is not None:
            drafting.follow(decoding)
        room = self._most_looked_up - len(decoding)
        if room < 1 or (prompts and not self._beside_prompts):
            if not self._rest:
                self._rest = self._resting = NO_ROOM_REST
            return None
        batched = drafting if len(decoding) < self._most else None
        batched = batched if batched is not None and batched.due() else None
        rests = self._rest > 0
        if rests and batched is None:
            return None
        began = self._clock()
        drafts: list[Sequence[int]] = [() if rests else self._draft(sequence, room) for sequence in decoding]
        if batched is None:
            planned = self._plan(decoding, drafts)
            self._pay(self._clock() - began)
        else:
            if not rests:
                self._pay(self._clock() - began)
            planned = self._plan_batched(batched, decoding, drafts) or self._plan(decoding, drafts)
        return planned if any(each.tokens for each in planned) else None

    def _pay(self, seconds: float) -> None:
        """Pay for a look-up, which may have waited for the CPU."""
        if self._lookup_s:
            seconds = min(seconds, OUTLIER * self._lookup_s)
            self._lookup_s += (seconds - self._lookup_s) / LOOKUPS
        else:
            self._lookup_s = seconds
        self._budget.pay(LOOKUP_WEIGHT * seconds + CALLS_S)

    def _plan(self, decoding: Sequence[EngineSequence], drafts: Sequence[Sequence[int]]) -> list[Draft]:
        if not any(drafts):
            return []
        offers = [(each.length, each.first, each.rate) for each in self._offers(decoding, drafts)]
        lengths = self._choose_lengths(self._costs, offers, self._most_looked_up, self._budget.seconds)
        rows = len(decoding) + sum(lengths)
        if rows > self._most and self._fits is not None and not self._fits(rows):
            lengths = self._choose_lengths(self._costs, offers, self._most, self._budget.seconds)
        return self._of_lengths(decoding, drafts, lengths)

    def _plan_batched(
        self,
        batched: BatchDrafting,
        decoding: Sequence[EngineSequence],
        drafts: Sequence[Sequence[int]],
    ) -> list[Draft] | None:
        """Return the drafts of a step for some of which more is drafted; None if that fails."""
        room = self._most - len(decoding)
        most = [self._most_drafted(sequence, room) for sequence in decoding]
        offers = self._offers(decoding, drafts)
        plan = batched.plan(self._costs, decoding, offers, most, self._most)
        if plan is None:
            return None
        planned = self._of_lengths(decoding, drafts, plan.lengths)
        for at, draft in plan.drafted.items():
            self._drafts_of(decoding[at])
            planned[at] = Draft(draft.tokens, draft.specs, batched=True)
        return planned

    @staticmethod
    def _offers(decoding: Sequence[EngineSequence], drafts: Sequence[Sequence[int]]) -> list[Offer]:
        return [
            Offer(len(draft), each.drafts.first, each.drafts.rate) if each.drafts is not None else Offer(len(draft))
            for draft, each in zip(drafts, decoding, strict=True)
        ]

    def _of_lengths(
        self, decoding: Sequence[EngineSequence], drafts: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> list[Draft]:
        """Return the drafts of which so many tokens are verified."""
        planned = [NO_DRAFT] * len(decoding)
        for at, length in enumerate(lengths):
            if length:
                planned[at] = self._with_specs(decoding[at], drafts[at][:length])
                if not planned[at].tokens and (known := decoding[at].drafts) is not None:
                    known.forbidden()
            elif drafts[at]:
                self._not_verified(decoding[at], drafts[at])
        return planned

    def verified(self, sequence: EngineSequence, draft: Draft, accepted: int) -> None:
        """Record that so many tokens of a draft were accepted."""
        if draft.batched:
            if self._batched is not None:
                self._batched.verified(sequence, len(draft.tokens), accepted)
        elif sequence.drafts is not None:
            self._looked_up = True
            sequence.drafts.verified(len(draft.tokens), accepted)

    def record_step(self, seconds: float, sequences: int) -> None:
        """Record how long a step without drafts took."""
        if self._batched is not None:
            self._batched.record_step(self._costs, seconds, sequences, sequences)
        if self._rest:
            self._rest -= 1
        if not self._rest or self._batched is not None:
            self._costs.record(sequences, seconds)
        if self._rest:
            return
        self._rest = self._resting = self._budget.step(seconds, steps=self._resting or 1)

    def record_drafts(self, seconds: float, sequences: int, rows: int, tokens: int) -> None:
        """Record how long a step of so many rows took, and the tokens that so many sequences have got by it, once its
        drafts are recorded."""
        self._costs.record(rows, seconds)
        alone = self._costs.measured(sequences)
        passed = self._resting - self._rest if self._rest else 0
        # A single step may have waited for the CPU.
        took = seconds if alone is None else min(seconds, OUTLIER * self._costs.of(rows))
        gained = 0.0 if alone is None else alone * tokens / sequences - took
        if self._batched is not None:
            gained -= self._batched.record_step(self._costs, seconds, sequences, rows)
        if not self._looked_up:
            gained = 0.0
        self._looked_up = False
        self._rest = self._resting = self._budget.step(took, gained, steps=1 + passed)

    @property
    def failures(self) -> int:
        """Drafters that have failed and draft nothing any more."""
        return 0 if self._batched is None else self._batched.failures

    def settle(self) -> None:
        """Wait for background work that makes drafting faster."""
        if self._batched is not None:
            self._batched.settle()

    def close(self) -> None:
        """Free what drafts."""
        if self._batched is not None:
            self._batched.close()

    @staticmethod
    def _not_verified(sequence: EngineSequence, draft: Sequence[int]) -> None:
        if sequence.drafts is not None:
            sequence.drafts.not_verified(draft)

    def _draft(self, sequence: EngineSequence, room: int) -> Sequence[int]:
        """Return a draft that fits into the step, the reserved rows and the maximum length, without a token that would
        end the sequence: nothing is sampled after it."""
        most = self._most_drafted(sequence, room)
        if most < 1:
            return ()
        known = self._drafts_of(sequence)
        try:
            draft = known.draft(most)
        except Exception as error:  # noqa: BLE001 - an error of a drafter must not end the sequence
            self._failed(sequence, error)
            return ()
        if sequence.request.has_rows:  # which are not drafted
            draft = tuple(takewhile(lambda token: token >= 0, draft))
        eos = sequence.request.eos
        if not draft or eos.isdisjoint(draft):
            return draft
        return draft[: next(at for at, token in enumerate(draft) if token in eos)]

    def _drafts_of(self, sequence: EngineSequence) -> SequenceDrafts:
        if sequence.drafts is None:
            sequence.drafts = SequenceDrafts(sequence.tokens, self._make_drafters(sequence), self._rates)
        return sequence.drafts

    def _most_drafted(self, sequence: EngineSequence, room: int) -> int:
        """Return how many tokens may be drafted for a sequence: they fit into the step, the reserved rows and the
        maximum length, and its recurrent state can be taken back."""
        if not sequence.request.speculate or sequence.drafts_failed:
            return 0
        reserved, wanted = sequence.reserved - sequence.cached.rows, sequence.max_length - len(sequence.tokens)
        return max(0, min(room, self._most_of_slot, reserved - 1, wanted - 1))

    def _with_specs(self, sequence: EngineSequence, tokens: Sequence[int]) -> Draft:
        """Return the first tokens of a draft with which the sequence may go on."""
        sampling, position = sequence.request.sampling, len(sequence.tokens)
        if sequence.processors is None:
            return Draft(tokens, [SampleSpec(sampling, position + at) for at in range(1, len(tokens) + 1)])
        try:
            specs = sequence.processors.draft_specs(sampling, position, tokens)
        except Exception as error:  # noqa: BLE001 - as in `_draft`
            self._failed(sequence, error)
            return NO_DRAFT
        return Draft(tokens[: len(specs)], specs)

    def _failed(self, sequence: EngineSequence, error: Exception) -> None:
        self._log.error("draft_failed", stream=sequence.request.stream, exc_info=error)
        sequence.drafts_failed = True
