"""Restores of a step: rows that sequences take from the prefix tier."""

from workers.engine.sequence import EngineSequence
from workers.engine.steps.engine_parts import EngineParts
from workers.engine.steps.outcomes import SequenceOutcomes
from workers.engine.tier.prefix_tier import ALONE_RESTORE_S, RESTORE_S, RESUMED_RESTORE_S, PrefixTier


class TierSteps:
    """Writes rows of the prefix tier to the slots of sequences for which these have fewer."""

    def __init__(self, parts: EngineParts, outcomes: SequenceOutcomes) -> None:
        self._outcomes = outcomes
        self._scheduler = parts.scheduler
        self._snapshots = parts.snapshots
        self._stats = parts.stats

    def restore(self, tier: PrefixTier) -> None:
        """Take rows from the prefix tier, for sequences for which the slots have fewer."""
        failed: list[tuple[EngineSequence, Exception]] = []
        for sequence, copy in self._scheduler.begin_restores(tier.rows_for, tier.block_rows):
            self._stats.started += not sequence.restarted
            try:
                if copy is not None:
                    self._snapshots.copy(copy)
            except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
                failed.append((sequence, error))
        for sequence, reason in failed:  # after the last copy, as in `PromptSteps`
            self._outcomes.fail(sequence, "prefill", reason)
        restoring = self._scheduler.restoring()
        until = tier.clock() + self._seconds(restoring)
        for sequence in restoring:
            try:
                for rows in tier.restore(sequence, until):
                    self._scheduler.restored(sequence, rows)
            except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
                self._outcomes.fail(sequence, "prefill", error)
            if tier.clock() >= until:
                break

    def _seconds(self, restoring: list[EngineSequence]) -> float:
        """Return the time that this step restores rows for."""
        if not self._scheduler.active_rows:
            return ALONE_RESTORE_S
        return RESUMED_RESTORE_S if any(sequence.request.resume for sequence in restoring) else RESTORE_S
