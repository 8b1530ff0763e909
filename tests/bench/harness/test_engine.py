from pathlib import Path

import pytest

from bench.harness.engine import Engine, Setup
from bench.measurement.rounds import RefusedError
from workers.scripted.runner import ScriptedRunner


def test_steps_decode_every_sequence_and_leave_the_slots_free() -> None:
    engine = Engine(ScriptedRunner(slots=3, context=256, vocab_size=300))
    for _ in range(2):
        assert len(engine.steps([engine.prompt(100), engine.prompt(3), engine.prompt(3)], 5)) == 5
    assert engine.decode(3, 10, 4) > 0
    assert engine.prefill(200) > 0
    assert len(engine.complete((1, 2, 3), 7)) == 7


def test_the_share_of_memory_is_that_of_the_time_which_its_read_would_take() -> None:
    engine = Engine(ScriptedRunner(slots=3, context=256, vocab_size=300))
    speeds = iter([1e9, 1e9, 1e9, 1e9, 1e18])
    once = engine.memory_share(2, 10, 5, 1e3, lambda: next(speeds))
    assert next(speeds, None) is None, "once for each step"
    assert 0 < once < 1, "a microsecond of steps that take longer"
    assert engine.memory_share(2, 10, 5, 1e12, lambda: 1e9) > 1, "1,000 s of steps that take less"


def test_more_sequences_than_the_engine_holds_are_refused() -> None:
    engine = Engine(ScriptedRunner(slots=2, context=256, vocab_size=300))
    with pytest.raises(RefusedError):
        engine.decode(3, 10, 4)
    assert engine.decode(2, 10, 4) > 0, "nothing is left of the refused ones"


def test_a_setting_that_this_version_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="quantize"):
        Setup(tmp_path, tmp_path, 1, 64, quantize="int3").spec()


def test_a_model_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"config\.json"):
        Engine.load(Setup(tmp_path, tmp_path, 1, 64))
