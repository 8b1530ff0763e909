"""Engine stats: the gauges, with the longest step within the bounds of the wire."""

import pytest

from protocol.bounds import MAX_MILLISECONDS
from workers.engine.kv_slots import SlotTable
from workers.engine.stats import EngineStats


def test_gauges_are_the_counts_and_the_slots() -> None:
    stats, slots = (
        EngineStats(started=3, completed=2, prefill_tokens=40, decode_tokens=9, decode_steps=7),
        SlotTable(2, 50),
    )
    slots.take(1, 20)
    slots.add_rows(0, 5)
    stats.record_step(0.0201, failed=False)
    stats.record_step(0.001, failed=True)
    stats.record_prefix_hit(30)
    stats.record_prefix_hit(4)
    gauges = stats.gauges(slots, queued=6, graphs_failed=1)
    assert (gauges.slots_active, gauges.kv_tokens, gauges.queue_depth, gauges.graphs_failed) == (1, 5, 6, 1)
    assert (gauges.steps, gauges.steps_failed, gauges.decode_steps, gauges.slowest_step_ms) == (2, 1, 7, 21)
    assert (gauges.prefill_tokens, gauges.decode_tokens, gauges.prefix_hits, gauges.prefix_tokens) == (40, 9, 2, 34)
    assert (gauges.sequences_started, gauges.sequences_completed) == (3, 2)


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0, 0), (0.0001, 1), (MAX_MILLISECONDS, MAX_MILLISECONDS)])
def test_the_longest_step_is_in_whole_milliseconds(seconds: float, milliseconds: int) -> None:
    stats = EngineStats()
    stats.record_step(seconds, failed=False)
    assert stats.gauges(SlotTable(1, 1), 0, 0).slowest_step_ms == milliseconds
