"""Scheduler over a pool of slots, with the steps that a runner would have run."""

from typing import Any

from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import RunnerCapabilities
from workers.engine.scheduler import Scheduler
from workers.engine.sequence import ScheduledChunk

SHARED = tuple(range(20))


def scheduler(
    slots: int = 2, *, exact: bool = True, min_tokens: int = 1, step_tokens: int = 99, block: int = 1, **options: Any
) -> Scheduler:
    capabilities = RunnerCapabilities("scripted", "none", "float32", slots, 32, 100, (4, 8), exact, block)
    policy = options.pop("prefixes", PrefixPolicy(min_tokens=min_tokens))
    return Scheduler(capabilities, max_queue=8, step_tokens=step_tokens, prefixes=policy, **options)


def ask(
    stream: int, prompt: tuple[int, ...] = SHARED, *, max_tokens: int | None = 4, tenant: str = ""
) -> EngineRequest:
    return EngineRequest(stream, prompt, max_tokens=max_tokens, tenant=tenant)


def admit(one: Scheduler) -> list[int]:
    """Admit as many as possible. Returns the slots that were evicted for it, which are clean at once."""
    one.admit(0.0)
    given_up: list[int] = []
    while one.make_room() is not None:
        given_up += one.slots.dirty
        for slot in one.slots.dirty:
            one.slots.clean(slot)
        one.admit(0.0)
    return given_up


def prefill(one: Scheduler) -> list[ScheduledChunk]:
    """Return all chunks of a step."""
    works = []
    while call := one.next_call():
        works += call
        for work in call:
            one.prefilled(work)
            if work.sample is not None:
                one.accept(work.sequence, 50)
    return works


def run(one: Scheduler, *requests: EngineRequest) -> list[ScheduledChunk]:
    """Submit, admit and prefill."""
    for request in requests:
        one.submit(request, 0.0)
    admit(one)
    return prefill(one)


def end(one: Scheduler, *streams: int) -> None:
    for stream in streams:
        assert one.remove(stream) is not None
