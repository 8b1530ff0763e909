"""Engine on the scripted runner: counts, times, terminal events, and all ways to end."""

from collections.abc import Sequence

import pytest

from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.gate import alone
from tests.workers.engine.harness.scripted_bench import make
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import DecodeRow
from workers.engine.step_result import SequenceEnd, Token
from workers.scripted.runner import ScriptedRunner

SEEDED = Sampling(temperature=1.0, seed=11)


def test_three_prompts_count_exactly_and_drain_back() -> None:
    bench = make()
    for stream, length in enumerate((5, 4, 5)):
        bench.submit(stream, length, max_tokens=16)
    bench.run()
    gauges = bench.engine.gauges()
    assert (gauges.sequences_started, gauges.sequences_completed) == (3, 3)
    assert (gauges.prefill_tokens, gauges.decode_tokens, gauges.decode_steps) == (14, 48, 15)
    assert (gauges.slots_active, gauges.queue_depth, gauges.kv_tokens) == (0, 0, 0)
    assert (gauges.steps, gauges.steps_failed) == (15, 0)
    assert [len(bench.tokens[stream]) for stream in range(3)] == [16, 16, 16]
    assert [end.reason for end in bench.ends.values()] == ["length"] * 3
    assert bench.runner.violations == []


def test_gauges_while_it_runs() -> None:
    bench = make(slots=2)
    for stream in range(3):
        bench.submit(stream, max_tokens=4)
    assert bench.engine.gauges().queue_depth == 3
    bench.step()
    gauges = bench.engine.gauges()
    # Each of two: five prompt rows, and the row of the first token.
    assert (gauges.slots_active, gauges.queue_depth, gauges.kv_tokens, gauges.decode_tokens) == (2, 1, 12, 4)
    bench.engine.cancel(0)
    assert bench.engine.gauges().slots_active == 1


def test_an_idle_engine_does_nothing() -> None:
    bench = make()
    assert bench.engine.idle
    result = bench.engine.step()
    assert (result.tokens, result.ends, result.failures, result.failed) == ((), (), (), False)
    assert bench.engine.gauges().steps == 0
    assert bench.runner.calls == 0


def test_a_first_token_is_reported_with_the_way_to_it() -> None:
    bench = make(slots=1, step_tokens=8)
    bench.submit(0, 5, max_tokens=2)
    bench.submit(1, 12, max_tokens=4, resume=(7, 8))
    starts = []
    for now in range(1, 12):
        bench.now = float(now)
        starts.append(bench.engine.step().starts)
    ((first,), (second,)) = [each for each in starts if each]
    assert (first.stream, first.prompt_tokens, first.cached_tokens) == (0, 5, 0)
    assert (second.stream, second.prompt_tokens) == (1, 14)
    assert first.queue_s + first.prefill_s == 1.0 + starts.index((first,))
    assert second.queue_s + second.prefill_s == 1.0 + starts.index((second,))
    assert second.queue_s >= 2.0, "it waited for the only slot"


def test_times_are_of_queue_prefill_and_decode() -> None:
    bench = make(slots=1, step_tokens=8)
    bench.submit(0, 5, max_tokens=1)
    bench.submit(1, 12, max_tokens=4)
    bench.now = 2.0
    bench.step()
    bench.now = 5.0
    bench.step()
    bench.now = 9.0
    bench.step()
    bench.now = 10.0
    bench.run()
    end = bench.ends[1]
    assert (end.queue_s, end.prefill_s, end.decode_s) == (5.0, 4.0, 1.0)
    assert (end.prompt_tokens, end.completion_tokens) == (12, 4)


def test_the_longest_step_is_measured() -> None:
    class Slow(ScriptedRunner):
        """Decodes for two seconds."""

        def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
            bench.now += 2.0
            return super().decode(rows)

    bench = make(runner=Slow(slots=1))
    bench.now = 10.0
    bench.submit(0, 5, max_tokens=3)
    bench.run()
    assert bench.engine.gauges().slowest_step_ms == 2000


@pytest.mark.parametrize("sampling", [Sampling(), SEEDED])
@pytest.mark.parametrize("length", [1, 4, 7, 8, 9, 17])
def test_resume_continues_unchanged(sampling: Sampling, length: int) -> None:
    request = EngineRequest(3, tuple(range(length)), sampling, 14)
    whole = alone(ScriptedRunner(slots=1, context=64, prefill_chunks=(4, 8)), request)
    assert len(whole) == 14
    for split in range(15):
        bench = make()
        bench.engine.submit(EngineRequest(3, request.prompt, sampling, 14, resume=tuple(whole[:split])))
        bench.run()
        assert bench.tokens.get(3, []) == whole[split:]
        assert (bench.ends[3].reason, bench.ends[3].completion_tokens) == ("length", 14)
        assert bench.engine.gauges().sequences_started == bench.engine.gauges().sequences_completed == 1


def test_an_end_of_sequence_token_is_emitted_and_ends() -> None:
    whole = alone(make().runner, EngineRequest(0, (0, 1, 2), max_tokens=10))
    stop = whole[4]
    bench = make()
    bench.submit(0, 3, max_tokens=10, eos=frozenset({stop}))
    bench.run()
    assert bench.tokens[0] == whole[: whole.index(stop) + 1]
    assert bench.ends[0].reason == "stop"
    split = make()
    split.submit(0, 3, max_tokens=10, eos=frozenset({stop}), resume=tuple(bench.tokens[0]))
    split.run()
    assert split.tokens == {}
    assert (split.ends[0].reason, split.ends[0].completion_tokens) == ("stop", len(bench.tokens[0]))


def test_a_prompt_of_one_less_than_the_context_gets_one_token() -> None:
    bench = make()
    bench.submit(0, 63)
    bench.run()
    assert (len(bench.tokens[0]), bench.ends[0].reason) == (1, "length")
    with pytest.raises(RequestRefused) as refused:
        bench.submit(1, 64)
    assert (refused.value.code, refused.value.field) == (ErrorCode.CONTEXT, "prompt")


@pytest.mark.parametrize("way", ["cancel", "finish"])
@pytest.mark.parametrize("phase", ["queued", "prefilling", "decoding"])
def test_a_sequence_can_be_cancelled_in_any_phase(way: str, phase: str) -> None:
    bench = make(slots=1, step_tokens=4)
    if phase == "queued":
        bench.submit(9, 20)
    bench.submit(1, 20)
    for _ in range({"queued": 1, "prefilling": 1, "decoding": 6}[phase]):
        bench.step()
    before = bench.engine.gauges()
    end = getattr(bench.engine, way)(1)
    assert end == SequenceEnd(
        1, "cancelled" if way == "cancel" else "stop", 20, len(bench.tokens.get(1, [])), 0.0, 0.0, 0.0
    )
    assert getattr(bench.engine, way)(1) is None
    gauges = bench.engine.gauges()
    assert gauges.sequences_completed == before.sequences_completed + (way == "finish")
    assert gauges.queue_depth == 0
    if phase != "queued":
        assert (gauges.slots_active, gauges.kv_tokens) == (0, 0)
        bench.submit(2, 5, max_tokens=2)
        bench.run()
        assert bench.tokens[2] == alone(make().runner, EngineRequest(2, (2, 3, 4, 5, 6), max_tokens=2))
    assert bench.runner.violations == []


def test_failed_graphs_are_in_the_gauges() -> None:
    class Lacking(ScriptedRunner):
        graphs_failed = 2

    assert make(runner=Lacking()).engine.gauges().graphs_failed == 2


def test_a_long_prompt_does_not_stop_the_others() -> None:
    bench = make(slots=2, context=640, step_tokens=9)
    bench.submit(0, 4, max_tokens=70)
    bench.step()
    bench.submit(1, 250, max_tokens=2)
    while 1 not in bench.tokens:
        before = len(bench.tokens[0])
        bench.step()
        assert len(bench.tokens[0]) == before + 1, "each step decodes"
    assert len(bench.tokens[0]) > 30


def test_closing_closes_the_runner() -> None:
    class Closing(ScriptedRunner):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    runner = Closing()
    bench = make(runner=runner)
    bench.engine.close()
    assert runner.closed == 1


def test_tokens_of_one_stream_are_in_order_within_a_step() -> None:
    bench = make()
    bench.submit(0, 3, max_tokens=5)
    result = bench.engine.step()
    whole = alone(make().runner, EngineRequest(0, (0, 1, 2), max_tokens=2))
    assert result.tokens == (Token(0, whole[0]), Token(0, whole[1]))
