"""The policy `shortest-uncached-first`: the order of slots and of prefill calls, and that no prompt starves."""

import pytest

from protocol.scheduling import AGING_TOKENS_PER_S, SchedulerPolicy
from tests.workers.engine.harness.pool import admit, ask, end, run, scheduler
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.scheduler import Scheduler
from workers.scripted.runner import ScriptedRunner

SHORTEST: SchedulerPolicy = "shortest-uncached-first"


def distinct(stream: int, length: int) -> EngineRequest:
    return ask(stream, tuple((10 * stream + at) % 97 for at in range(length)))


def streams_of_a_step(one: Scheduler) -> list[int]:
    streams = []
    while call := one.next_call():
        for work in call:
            one.prefilled(work)
            streams.append(work.sequence.request.stream)
            if work.sample is not None:
                one.accept(work.sequence, 50)
    return streams


@pytest.mark.parametrize(
    ("policy", "order"), [("fifo", [0, 1, 2]), ("priority", [0, 1, 2]), (SHORTEST, [2, 1, 0])], ids=str
)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "inexact"])
def test_short_prompts_are_prefilled_before_long_ones(policy: SchedulerPolicy, order: list[int], exact: bool) -> None:
    one = scheduler(3, policy=policy, exact=exact)
    for stream, length in enumerate((24, 12, 2)):
        one.submit(distinct(stream, length), 0.0)
    admit(one)
    assert list(dict.fromkeys(streams_of_a_step(one))) == order


def test_a_short_prompt_gets_the_next_slot() -> None:
    one = scheduler(1, policy=SHORTEST)
    run(one, distinct(0, 4))
    one.submit(distinct(1, 20), 0.0)
    one.submit(distinct(2, 3), 0.0)
    end(one, 0)
    admit(one)
    assert streams_of_a_step(one) == [2]


def test_cached_rows_do_not_count() -> None:
    one = scheduler(2, policy=SHORTEST, prefixes=PrefixPolicy(min_tokens=4))
    run(one, ask(0, tuple(range(20))), distinct(1, 4))
    end(one, 0)
    one.submit(distinct(2, 6), 0.0)
    one.submit(ask(3, (*range(20), 77)), 0.0)
    admit(one)
    assert streams_of_a_step(one) == [3]


@pytest.mark.parametrize(("later", "order"), [(0.19, [2, 1]), (0.21, [1, 2])])
def test_a_prompt_is_overtaken_only_by_those_that_come_within_its_handicap(later: float, order: list[int]) -> None:
    one = scheduler(2, policy=SHORTEST)
    extra = round(0.2 * AGING_TOKENS_PER_S)
    one.submit(distinct(1, 4 + extra), 0.0)
    one.submit(distinct(2, 4), later)
    admit(one)
    assert list(dict.fromkeys(streams_of_a_step(one))) == order


def test_a_long_prompt_among_short_ones_without_end_is_answered_in_time() -> None:
    now = 0.0
    engine = BatchEngine(
        ScriptedRunner(slots=2, context=512, prefill_chunks=(16,), alphabet=(1,)),
        max_queue=400,
        step_tokens=17,
        policy=SHORTEST,
        clock=lambda: now,
    )
    engine.submit(EngineRequest(0, tuple(range(200)), max_tokens=1))
    ended_at = None
    for stream in range(1, 400):
        engine.submit(EngineRequest(stream, tuple((stream + at) % 251 for at in range(15)), max_tokens=1))
        now += 0.05
        if any(end.stream == 0 for end in engine.step().ends):
            ended_at = now
            break
    assert ended_at is not None
    assert 185 / AGING_TOKENS_PER_S < ended_at < 200 / AGING_TOKENS_PER_S + 200 / 16 * 0.05 + 0.5


def test_three_short_requests_behind_two_long_prompts_end_within_a_few_steps() -> None:
    def steps(policy: SchedulerPolicy) -> dict[int, int]:
        runner = ScriptedRunner(slots=8, context=4096, prefill_chunks=(16, 64, 256), alphabet=(1,))
        engine = BatchEngine(runner, max_queue=8, step_tokens=256, policy=policy)
        for stream, length in enumerate((2500, 2500, 20, 20, 20)):
            tokens = tuple((7 * stream + at) % 251 for at in range(length))
            engine.submit(EngineRequest(stream, tokens, max_tokens=2))
        ended: dict[int, int] = {}
        for step in range(1, 100):
            ended |= {end.stream: step for end in engine.step().ends}
        return ended

    assert max(steps(SHORTEST)[stream] for stream in (2, 3, 4)) == 1
    assert min(steps("fifo")[stream] for stream in (2, 3, 4)) > 15
    assert steps(SHORTEST)[1] <= steps("fifo")[1] + 1, "and the long ones lose almost nothing"
