"""Every module of decision code has tests that exist, and every equivalent mutant is one that can be sampled."""

from bench.mutation import ROOT, read_modules, sample
from bench.mutation_test.equivalent import EQUIVALENT
from bench.mutation_test.suites import SUITES, find_stages


def test_every_pattern_has_modules_and_every_stage_exists() -> None:
    for suite in SUITES:
        for pattern in suite.modules:
            assert list(ROOT.glob(pattern)), pattern
        for path in (path for stage in suite.stages for path in stage):
            assert (ROOT / path).exists(), path


def test_tests_named_for_a_module_come_first() -> None:
    stages = find_stages(ROOT)
    assert stages["workers/engine/chunking.py"][:2] == (
        ("tests/workers/engine/test_chunking.py",),
        ("tests/workers/engine",),
    )
    assert "tests/workers/engine/scheduler/test_scheduler_pool.py" in stages["workers/engine/scheduler.py"][0]
    assert "tests/gateway/fleet/test_join_address.py" in stages["gateway/fleet/member.py"][0], "it has none of its own"


def test_equal_seeds_sample_equal_mutants_of_the_modules_asked_for() -> None:
    sources = read_modules("workers/engine/kv_*.py")
    assert list(sources) == ["workers/engine/kv_slots.py"]
    assert sample(sources, 20, 3) == sample(sources, 20, 3)
    assert sample(sources, 20, 3) != sample(sources, 20, 4)
    everything = sample(sources, 10**6, 3)
    assert len(everything) == len(set(everything)) > 50


def test_every_equivalent_mutant_is_one_that_can_be_sampled() -> None:
    sources = read_modules("*")
    found = {
        (mutant.module, mutant.where, *mutant.change(sources[mutant.module])) for mutant in sample(sources, 10**6, 0)
    }
    for known in EQUIVALENT:
        assert (known.module, known.where, known.before, known.after) in found, f"remove it: {known}"
        assert known.reason
