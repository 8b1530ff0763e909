"""Makes the drafters that need no model: prompt lookup, and drafts of answers with a constraint."""

from workers.engine.sequence import EngineSequence
from workers.engine.speculation.answer_patterns import PatternTables
from workers.engine.speculation.constrained_draft import ConstrainedDraft
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.prompt_lookup import FollowedLookup, PromptLookup, RealignedLookup


class LookupDrafters:
    """Makes what drafts the tokens of a sequence without a model. Owns what was learned of answers with a grammar."""

    def __init__(self) -> None:
        self._patterns = PatternTables()

    def __call__(self, sequence: EngineSequence) -> list[Drafter]:
        """Return the drafters of a sequence: of equal drafts the first one is used."""
        lookup = PromptLookup(sequence.tokens)
        looked_up: list[Drafter] = [FollowedLookup(lookup), lookup, RealignedLookup(lookup)]
        request = sequence.request
        if request.constraint is None:
            return looked_up
        patterns = self._patterns.of(request.tenant, request.grammar, request.example)
        return [ConstrainedDraft(sequence, patterns), *looked_up]
