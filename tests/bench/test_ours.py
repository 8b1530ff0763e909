from pathlib import Path

import pytest

from bench.load import Answer
from bench.ours import Engine, Setup, decode_rate
from bench.rounds import RefusedError
from workers.scripted.runner import ScriptedRunner


def answer(*stamps: float, tokens: int = 0) -> Answer:
    return Answer(0.0, list(stamps), stamps[-1] if stamps else 0.0, tokens or len(stamps))


def test_the_rate_counts_while_every_answer_is_generated() -> None:
    # The first answer is alone until 2, the second alone after 5: between, six tokens come in three seconds.
    assert decode_rate([answer(0, 1, 2, 3, 4, 5), answer(2, 3, 4, 5, 6, 7)]) == pytest.approx(2.0)


def test_a_chunk_of_several_tokens_counts_for_all() -> None:
    assert decode_rate([answer(0, 1, 2, 3, tokens=8)]) == pytest.approx(2.0)


@pytest.mark.parametrize("answers", [[], [answer()], [answer(0, 1), answer(1, 2)], [answer(3)]])
def test_there_is_no_rate_without_a_common_time(answers: list[Answer]) -> None:
    with pytest.raises(ValueError):
        decode_rate(answers)


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
