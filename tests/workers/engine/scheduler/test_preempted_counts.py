"""Preempted sequences in the engine: what is counted, and what is reported of them."""

from typing import Any

from protocol.scheduling import LEVELS, Urgency
from tests.gate import alone
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.step_result import SequenceStart
from workers.scripted.runner import ScriptedRunner

HIGH, LOW = Urgency(LEVELS["high"]), Urgency(LEVELS["low"])
LONG, OTHER = tuple(range(40)), tuple(range(100, 140))


def make(slots: int, **options: Any) -> BatchEngine:
    runner = ScriptedRunner(slots=slots, context=64, prefill_chunks=(4, 8))
    return BatchEngine(runner, max_queue=8, step_tokens=8, prefixes=PrefixPolicy(min_tokens=4), **options)


def run(engine: BatchEngine) -> dict[int, SequenceStart]:
    """Run all steps. Returns the starts of sequences by stream."""
    starts = {}
    while not engine.idle:
        starts.update({start.stream: start for start in engine.step().starts})
    return starts


def test_a_sequence_that_is_preempted_before_its_first_chunk_is_counted_when_it_begins() -> None:
    engine = make(2)
    engine.submit(EngineRequest(1, LONG, max_tokens=4))
    engine.submit(EngineRequest(2, OTHER, max_tokens=20, urgency=LOW))
    engine.step()
    engine.submit(EngineRequest(3, (7,), max_tokens=4, urgency=HIGH))
    engine.step()
    assert (engine.gauges().preemptions, engine.gauges().sequences_started) == (1, 2)
    run(engine)
    assert (engine.gauges().sequences_started, engine.gauges().sequences_completed) == (3, 3)


def test_the_rows_that_it_takes_when_it_begins_later_are_those_of_another_sequence() -> None:
    engine = make(3)
    engine.submit(EngineRequest(1, OTHER, max_tokens=20))
    for _ in range(6):
        engine.step()
    engine.submit(EngineRequest(2, LONG, max_tokens=4))
    engine.submit(EngineRequest(3, (*OTHER, 3), max_tokens=20, urgency=LOW))
    engine.step()
    engine.submit(EngineRequest(4, (7,), max_tokens=1, urgency=HIGH))
    engine.step()
    assert engine.gauges().preemptions == 1
    assert run(engine)[3].cached_tokens == 40
    assert (engine.gauges().prefix_hits, engine.gauges().prefix_tokens) == (1, 40)


def test_its_own_rows_are_not_reported_as_those_of_another_sequence() -> None:
    engine = make(3, kv_tokens=128)
    engine.submit(EngineRequest(1, OTHER, max_tokens=20, urgency=LOW))
    engine.submit(EngineRequest(2, LONG, max_tokens=20, urgency=LOW))
    for _ in range(6):
        engine.step()
    engine.submit(EngineRequest(3, (7,), max_tokens=10, urgency=HIGH))
    engine.step()
    assert (engine.gauges().preemptions, engine.gauges().retained_tokens) == (1, 4), "a chunk of the prompt"
    starts = run(engine)
    assert engine.gauges().prefill_tokens == 40 + 40 + 1, "nothing is computed twice"
    assert (starts[2].prompt_tokens, starts[2].cached_tokens) == (40, 0)
    assert (engine.gauges().sequences_started, engine.gauges().prefix_hits) == (3, 0)


def test_a_slot_of_a_sequence_that_waited_for_too_long_is_taken_in_the_same_step() -> None:
    now = 0.0
    engine = make(2, clock=lambda: now)
    engine.submit(EngineRequest(1, LONG, max_tokens=4))
    engine.submit(EngineRequest(2, OTHER, max_tokens=4, queue_s=1.0))
    engine.step()
    engine.submit(EngineRequest(3, (7,), max_tokens=4))
    now = 1.0
    assert [failure.stream for failure in engine.step().failures] == [2]
    assert (engine.gauges().slots_active, engine.gauges().queue_depth) == (2, 0)


def test_a_preempted_sequence_continues_with_its_tokens() -> None:
    engine = make(1)
    request = EngineRequest(1, LONG, max_tokens=20)
    engine.submit(request)
    tokens: list[int] = []
    while not engine.idle:
        before = len(tokens)
        tokens += [token.token for token in engine.step().tokens if token.stream == 1]
        if before < 3 <= len(tokens):
            engine.submit(EngineRequest(2, (7,), max_tokens=2, urgency=HIGH))
    assert engine.gauges().preemptions == 1
    assert tokens == alone(ScriptedRunner(slots=1, context=64, prefill_chunks=(4, 8)), request)


def test_a_sequence_that_is_preempted_in_its_prefill_has_one_hit() -> None:
    engine = make(1)
    engine.submit(EngineRequest(1, LONG[:16], max_tokens=1))
    run(engine)
    engine.submit(EngineRequest(2, LONG, max_tokens=20))
    engine.step()
    engine.submit(EngineRequest(3, (7,), max_tokens=1, urgency=HIGH))
    assert run(engine)[2].cached_tokens == 16
    gauges = engine.gauges()
    assert (gauges.preemptions, gauges.prefix_hits, gauges.prefix_tokens) == (1, 1, 16)
