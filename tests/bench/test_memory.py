from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.memory import EngineSample, LostRequestError, RandomRequests, judge
from workers.engine.engine import BatchEngine
from workers.engine.runner import DecodeRow, Runner
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import raising
from workers.scripted.runner import ScriptedRunner

FLAT = [EngineSample(250 * n, 10_000_000, 4096, 0, 0, 19, 8, 1000) for n in range(1, 21)]


def problems(samples: Sequence[EngineSample]) -> list[str]:
    return [verdict.name for verdict in judge(samples, tolerance=256.0) if verdict.problem]


def test_what_stays_is_no_growth() -> None:
    assert problems(FLAT) == []


def test_growth_while_warming_up_is_none_and_one_high_sample_is_noise() -> None:
    samples = [replace(s, rss=s.rss - 5_000_000) if s.requests < 1000 else s for s in FLAT]
    samples[17] = replace(samples[17], rss=30_000_000, device=8192)
    assert problems(samples) == []


@pytest.mark.parametrize(
    ("field", "a_request", "grows"),
    [
        ("rss", 250, False),
        ("rss", 260, True),
        ("device", 1, True),
        ("descriptors", 1, True),
        ("threads", 1, True),
        ("objects", 1, True),
    ],
)
def test_growth_is_found(field: str, a_request: int, grows: bool) -> None:
    samples = [replace(s, **{field: getattr(s, field) + a_request * s.requests}) for s in FLAT]
    assert problems(samples) == ([field] if grows else [])


def test_a_slot_that_is_held_is_a_problem_even_if_it_does_not_grow() -> None:
    assert problems([replace(s, slots=1, kv_tokens=7) for s in FLAT]) == ["slots", "kv_tokens"]


def test_too_few_samples_tell_nothing() -> None:
    assert judge(FLAT[:8], 0.0)
    with pytest.raises(ValueError):
        judge(FLAT[:7], 0.0)


class Leaky(ScriptedRunner):
    """Keeps something of every row that it decodes."""

    def __init__(self) -> None:
        super().__init__(slots=4, context=256, vocab_size=300)
        self.kept: list[list[int]] = []

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.kept += [[row.token] for row in rows]
        return super().decode(rows)


def soak(runner: Runner, allocated: int = 0) -> list[EngineSample]:
    engine = BatchEngine(runner, max_queue=64, step_tokens=64)
    return list(RandomRequests(engine, lambda: allocated, seed=1).run(160, every=20))


def test_the_engine_runs_dry_and_holds_nothing() -> None:
    runner = ScriptedRunner(slots=4, context=256, vocab_size=300)
    samples = soak(runner, allocated=77)
    assert [s.requests for s in samples] == list(range(20, 161, 20))
    assert {(s.slots, s.kv_tokens, s.device) for s in samples} == {(0, 0, 77)}
    assert runner.violations == []


def test_a_runner_that_keeps_objects_is_found() -> None:
    assert "objects" in problems(soak(Leaky()))


def test_a_request_that_fails_ends_the_soak() -> None:
    with pytest.raises(LostRequestError, match="failed"):
        soak(with_faults(ScriptedRunner(slots=4, context=256, vocab_size=300), raising([30])))
