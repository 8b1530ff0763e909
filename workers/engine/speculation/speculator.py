"""Drafts the tokens of a decode step, and learns from what became of them. Pure, but for the log.

The model samples at every drafted position by its own logits and noise, and a drafted token is accepted if it is the
one that was sampled: the tokens are those of decoding without drafts, greedy and seeded alike. For tokens that are
drafted without probabilities no other rule accepts more (https://arxiv.org/abs/2211.17192).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from workers.engine.runner import DecodeRow, RunnerCapabilities
from workers.engine.sequence import EngineSequence, decode_row
from workers.engine.speculation.acceptance import Acceptance
from workers.engine.speculation.draft_lengths import draft_lengths
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.forced_tokens import ForcedTokens
from workers.engine.speculation.prompt_lookup import PromptLookup
from workers.engine.speculation.sequence_drafts import SequenceDrafts
from workers.engine.speculation.step_costs import StepCosts
from workers.sampling.sample_spec import SampleSpec


class Draft(NamedTuple):
    """The drafted tokens of a sequence, and how to sample after each of them."""

    tokens: Sequence[int] = ()
    specs: Sequence[SampleSpec] = ()

    def rows(self, sequence: EngineSequence) -> list[DecodeRow]:
        """Return the rows of a sequence: that of its last token and those of the drafted ones."""
        first = decode_row(sequence)
        drafted = zip(self.tokens, self.specs, strict=True)
        return [
            first,
            *(
                DecodeRow(first.slot, token, first.start + at, first.position + at, spec)
                for at, (token, spec) in enumerate(drafted, 1)
            ),
        ]

    def accepted(self, sampled: Sequence[int | None]) -> int:
        """Return how many drafted tokens are those that the rows have sampled, up to the first other one."""
        pairs = enumerate(zip(self.tokens, sampled, strict=False))
        return next((at for at, (drafted, token) in pairs if drafted != token), len(self.tokens))


NO_DRAFT = Draft()


def drafters(sequence: EngineSequence) -> list[Drafter]:
    """Return what drafts the tokens of a sequence: what is forced comes before what is likely."""
    lookup = PromptLookup(sequence.tokens)
    return [lookup] if sequence.processors is None else [ForcedTokens(sequence.processors), lookup]


class Speculator:
    """Owns what is learned of steps and of all drafts; each sequence has its own `SequenceDrafts`."""

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        make_drafters: Callable[[EngineSequence], Sequence[Drafter]] = drafters,
        choose_lengths: Callable[[StepCosts, Sequence[tuple[int, float]], int], list[int]] = draft_lengths,
        *,
        beside_prompts: bool = False,
    ) -> None:
        """`beside_prompts`: also in steps in which prompts wait, whose first tokens it delays. Raises `ValueError` for
        a runner that takes one row a slot."""
        if not capabilities.decode_rows:
            raise ValueError("decode_rows: the runner takes one row a slot in a decode step")
        self._most = capabilities.decode_rows
        self._costs = StepCosts()
        self._make_drafters = make_drafters
        self._choose_lengths = choose_lengths
        self._beside_prompts = beside_prompts
        self._rates: dict[str, Acceptance] = {}
        self._log = structlog.get_logger()

    def plan(self, decoding: Sequence[EngineSequence], *, prompts: bool) -> list[Draft]:
        """Return the draft of each sequence in this step. `prompts`: some wait, or are prefilled."""
        room = self._most - len(decoding)
        if room < 1 or (prompts and not self._beside_prompts):
            return [NO_DRAFT] * len(decoding)
        drafts = [self._draft(sequence, room) for sequence in decoding]
        rates = [0.0 if each.drafts is None else each.drafts.rate for each in decoding]
        offers = [(len(draft), rate) for draft, rate in zip(drafts, rates, strict=True)]
        lengths = self._choose_lengths(self._costs, offers, self._most)
        planned = []
        for sequence, draft, length in zip(decoding, drafts, lengths, strict=True):
            if draft and not length and sequence.drafts is not None:
                sequence.drafts.not_verified(draft)
            planned.append(self._with_specs(sequence, draft[:length]) if length else NO_DRAFT)
        return planned

    def verified(self, sequence: EngineSequence, draft: Draft, accepted: int) -> None:
        """Record that so many tokens of a draft were accepted."""
        if sequence.drafts is not None and draft.tokens:
            sequence.drafts.verified(len(draft.tokens), accepted)

    def record_step(self, rows: int, seconds: float) -> None:
        """Record how long a step of so many rows took."""
        self._costs.record(rows, seconds)

    def _draft(self, sequence: EngineSequence, room: int) -> Sequence[int]:
        """Return a draft that fits into the step, the reserved rows and the maximum length, without a token that would
        end the sequence: nothing is sampled after it."""
        request = sequence.request
        reserved, wanted = sequence.reserved - sequence.cached.rows, sequence.max_length - len(sequence.tokens)
        most = min(room, reserved - 1, wanted - 1)
        if not request.speculate or most < 1:
            return ()
        if sequence.drafts is None:
            sequence.drafts = SequenceDrafts(sequence.tokens, self._make_drafters(sequence), self._rates)
        try:
            draft = sequence.drafts.draft(most)
        except Exception as error:  # noqa: BLE001 - an error of a drafter must not end the sequence
            self._failed(sequence, error)
            return ()
        end = next((at for at, token in enumerate(draft) if token in request.eos), len(draft))
        return draft[:end]

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
        if sequence.drafts is not None:
            sequence.drafts.off = True
