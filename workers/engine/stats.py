"""Counts of an engine since its start. Pure."""

import math
from dataclasses import dataclass

from protocol.bounds import MAX_MILLISECONDS
from protocol.events import Gauges
from workers.engine.images.image_encodings import ImageEncodings
from workers.engine.images.image_row_cache import ImageRowCache
from workers.engine.kv_slots import SlotTable
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.states.snapshot_store import SnapshotStore
from workers.engine.tier.prefix_tier import PrefixTier


@dataclass(slots=True)
class EngineStats:
    """Counters that only grow; owned by the engine."""

    steps: int = 0
    steps_failed: int = 0
    decode_steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    started: int = 0
    completed: int = 0
    prefix_hits: int = 0
    prefix_tokens: int = 0
    preemptions: int = 0
    """Times that a running sequence was preempted."""
    drafts: int = 0
    """Drafts that were verified."""
    draft_tokens: int = 0
    """Drafted tokens that were verified, of which so many were accepted:"""
    accepted_tokens: int = 0
    slowest_s: float = 0.0
    """Duration of the longest step."""

    def record_step(self, seconds: float, *, failed: bool) -> None:
        """Count a step that took `seconds`."""
        self.steps += 1
        self.steps_failed += failed
        if seconds > self.slowest_s:
            self.slowest_s = seconds

    def record_prefix_hit(self, tokens: int) -> None:
        """Count a sequence that started with `tokens` rows of another one."""
        self.prefix_hits += 1
        self.prefix_tokens += tokens

    def record_draft(self, drafted: int, accepted: int) -> None:
        """Count a draft, and its accepted tokens."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted

    def gauges(
        self,
        slots: SlotTable,
        queued: int,
        graphs_failed: int,
        tier: PrefixTier | None = None,
        drafters_failed: int = 0,
        snapshots: SnapshotStore | None = None,
        sparse: SparsePrefill | None = None,
        images: ImageEncodings | None = None,
        image_rows: ImageRowCache | None = None,
    ) -> Gauges:
        """Return the counters together with the current state of the slots and the queue."""
        return Gauges(
            slots_active=slots.active,
            queue_depth=queued,
            kv_tokens=slots.kv_tokens,
            steps=self.steps,
            steps_failed=self.steps_failed,
            decode_steps=self.decode_steps,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=self.decode_tokens,
            sequences_started=self.started,
            sequences_completed=self.completed,
            slowest_step_ms=min(math.ceil(self.slowest_s * 1000), MAX_MILLISECONDS),
            retained_tokens=slots.retained_tokens,
            prefix_hits=self.prefix_hits,
            prefix_tokens=self.prefix_tokens,
            graphs_failed=graphs_failed,
            preemptions=self.preemptions,
            stored_hits=0 if tier is None else tier.hits,
            stored_tokens=0 if tier is None else tier.tokens,
            stored_bytes=0 if tier is None else tier.used_bytes,
            stored_failures=0 if tier is None else tier.failures,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            drafters_failed=drafters_failed,
            state_cache_bytes=0 if snapshots is None else snapshots.used_bytes,
            state_cache_hits=0 if snapshots is None else snapshots.hits,
            state_cache_evictions=0 if snapshots is None else snapshots.evictions,
            sparse_prompts=0 if sparse is None else sparse.prompts,
            sparse_kept_tokens=0 if sparse is None else sparse.kept_tokens,
            sparse_left_out_tokens=0 if sparse is None else sparse.left_out_tokens,
            sparse_dense_prompts=0 if sparse is None else sparse.dense,
            images_encoded=0 if images is None else images.encoded,
            image_cache_hits=0 if image_rows is None else image_rows.hits,
            image_encode_ms=0 if images is None else round(images.seconds * 1000),
            image_cache_bytes=0 if image_rows is None else image_rows.used_bytes,
        )
