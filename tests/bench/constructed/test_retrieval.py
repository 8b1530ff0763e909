"""The constructed model finds every needle, and sparse prefill loses those that the draft model cannot tell apart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("workers.iree.runner", reason="the IREE backend is not installed")

from bench.constructed.needles import SPACING, VALUE, Haystack
from bench.constructed.retrieval import CODE, make_retrieval, parameters
from bench.harness.engine import Setup
from bench.overhead.needles import MODEL, SLOTS, Reader, has
from workers.engine.runner import Runner
from workers.engine.sparse.cost import LEAST_RATIO
from workers.process.backends import load_runner
from workers.process.spec import WorkerSpec

LONG = 16384
SHORT = 1024
FEW = 8
"""Signs by which 4 of 1,024 tokens look like any one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("retrieval")


def spec(path: Path, cache_dir: Path) -> WorkerSpec:
    return Setup(path, cache_dir, SLOTS, LONG + 64).spec()


@pytest.fixture(scope="module")
def model(folder: Path, cache_dir: Path) -> Iterator[Runner]:
    runner = load_runner(spec(make_retrieval(folder), cache_dir), lambda *_: None)
    runner.settle()
    yield runner
    runner.close()


def test_the_whole_prompt_answers_every_question_at_16384_tokens(model: Runner) -> None:
    haystack = Haystack.of(3, LONG)
    reader, depths = Reader(model), [at / 32 for at in range(33)]
    asked = [haystack.question(depth) for depth in depths]
    assert {len(prompt) for prompt, _ in asked} == {LONG}
    assert len(haystack.needles) == (LONG - 1) // SPACING
    assert [reader.answer(prompt)[0] for prompt, _ in asked] == [value for _, value in asked]
    for slot in range(SLOTS):
        model.reset(slot)


@pytest.mark.parametrize("seen", [CODE, FEW])
def test_a_sparse_prompt_answers_what_it_has_kept(model: Runner, folder: Path, cache_dir: Path, seen: int) -> None:
    path = make_retrieval(folder, seen=seen)
    draft = load_runner(replace(spec(path, cache_dir), attention=True), lambda *_: None)
    try:
        reader, right = Reader(model, draft), 0
        haystack = Haystack.of(5, SHORT)
        for depth in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
            prompt, value = haystack.question(depth)
            answer, kept = reader.answer(prompt, 0.15)
            assert kept, "a part is left out"
            assert (answer == value) == has(haystack, value, kept)
            right += answer == value
        assert right == 6 if seen == CODE else right < 6
    finally:
        draft.close()
        for slot in range(SLOTS):
            model.reset(slot)


def test_the_benchmark_has_a_model_of_eight_times_its_draft_model(folder: Path) -> None:
    assert parameters(make_retrieval(folder, **MODEL)) >= LEAST_RATIO * parameters(make_retrieval(folder))


@pytest.mark.parametrize("sizes", [{"layers": 1}, {"hidden": 192}, {"seen": 0}, {"seen": CODE + 1}])
def test_sizes_without_room_for_the_circuit_are_refused(folder: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="layers, hidden, seen"):
        make_retrieval(folder, **sizes)


def test_each_token_of_keys_and_values_is_in_a_haystack_once() -> None:
    haystack = Haystack.of(1, LONG)
    for at in haystack.needles:
        for token in haystack.tokens[at : at + 1 + VALUE]:
            assert haystack.tokens.count(token) == 1
    with pytest.raises(ValueError, match="[Ss]ample larger"):
        Haystack.of(1, 2 * LONG)
