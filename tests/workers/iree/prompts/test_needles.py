"""The constructed model finds every needle at 16,384 tokens, and sparse prefill loses those that the draft model cannot
tell apart."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.constructed.needles import SPACING, VALUE, Haystack
from bench.constructed.retrieval import CODE, make_retrieval, parameters
from bench.overhead.needles import MODEL, SLOTS, PromptReader, has
from tests.workers.iree.conftest import Load, fetch_all
from workers.engine.sparse.cost import LEAST_RATIO
from workers.iree.runner import IreeRunner

LONG = 16384
SHORT = 1024
FEW = 8
"""Signs by which 1 of 256 tokens looks like any one."""
PREFILL = "prefill_512"
"""The graph of all prompts."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("retrieval")


@pytest.fixture(scope="module")
def model(folder: Path, load: Load) -> Iterator[IreeRunner]:
    with closing(load(make_retrieval(folder), dtype="bfloat16", slots=SLOTS, context=LONG + 64)) as runner:
        fetch_all(runner, PREFILL)
        assert PREFILL in runner.graphs
        yield runner


def empty(runner: IreeRunner) -> None:
    for slot in range(SLOTS):
        runner.reset(slot)


@pytest.mark.exhaustive
def test_the_whole_prompt_answers_every_question_at_16384_tokens(model: IreeRunner) -> None:
    haystack = Haystack.of(3, LONG)
    reader, depths = PromptReader(model), [at / 32 for at in range(33)]
    asked = [haystack.question(depth) for depth in depths]
    assert {len(prompt) for prompt, _ in asked} == {LONG}
    assert len(haystack.needles) == (LONG - 1) // SPACING
    assert [reader.answer(prompt)[0] for prompt, _ in asked] == [value for _, value in asked]
    empty(model)


@pytest.mark.parametrize("seen", [CODE, FEW])
def test_a_sparse_prompt_answers_what_it_has_kept(model: IreeRunner, folder: Path, load: Load, seen: int) -> None:
    path = make_retrieval(folder, seen=seen)
    with closing(load(path, dtype="bfloat16", slots=SLOTS, context=LONG + 64, attention=True)) as draft:
        fetch_all(draft, PREFILL)
        reader, right = PromptReader(model, draft), 0
        haystack = Haystack.of(5, SHORT)
        for depth in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
            prompt, value = haystack.question(depth)
            answer, kept = reader.answer(prompt, 0.15)
            assert kept, "a part is left out"
            assert (answer == value) == has(haystack, value, kept)
            right += answer == value
    empty(model)
    assert right == 6 if seen == CODE else right < 6


def test_the_benchmark_has_a_model_of_eight_times_its_draft_model(folder: Path) -> None:
    assert parameters(make_retrieval(folder, **MODEL)) >= LEAST_RATIO * parameters(make_retrieval(folder))


@pytest.mark.parametrize("sizes", [{"layers": 1}, {"hidden": 192}, {"seen": 0}, {"seen": CODE + 1}])
def test_sizes_without_room_for_the_circuit_are_refused(folder: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="layers, hidden, seen"):
        make_retrieval(folder, **sizes)


def test_each_token_of_keys_and_values_is_in_a_haystack_once() -> None:
    haystack, counts = Haystack.of(1, LONG), Counter(Haystack.of(1, LONG).tokens)
    for at in haystack.needles:
        assert {counts[token] for token in haystack.tokens[at : at + 1 + VALUE]} == {1}
    with pytest.raises(ValueError, match="larger than population"):
        Haystack.of(1, 2 * LONG)
