"""Prompts with images on IREE against transformers: logits and tokens; and their bits in any chunks, and beside
others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from tests.reference.vision.processors import process, with_masks
from tests.reference.vision.test_vision import as_file, load_model, picture
from tests.vision_checkpoints import VISION_FAMILIES, make_vision_checkpoint
from tests.vision_checkpoints.projector_files import KINDS, make_projected
from tests.workers.iree.conftest import Load
from tests.workers.iree.vision.prompted import GREEDY, Prompted, finish
from tests.workers.tiled_gate import run_tiled_gate
from workers.checkpoints.checkpoint import ModelConfig
from workers.inspection.memory_figures import MemoryFigures
from workers.iree.build.ahead_of_time import compile_ahead
from workers.iree.build.graph_list import EMBEDDED
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions
from workers.process.spec import WorkerSpec
from workers.process.startup.vision_size import vision_bytes
from workers.vision.processor import ImageProcessor

pytestmark = pytest.mark.reference
CONTEXT = 512
ERROR = 1e-5
"""The largest error of a logit, beside the largest logit, in float32."""
COUNT = 6
"""Tokens of an answer."""
OFTEN = "qwen3_vl"
"""The family whose graphs the whole suite compiles: it has a deep stack, and positions on three axes."""
CASES = [
    pytest.param(name, marks=[] if name == OFTEN else [pytest.mark.exhaustive]) for name in sorted(VISION_FAMILIES)
]
PROJECTED = [case for case in CASES if case.values[0] in KINDS]
"""The families whose towers may be in a GGUF file."""
CENTRED = ("gemma3", "qwen3_5")
"""Families whose norms are rounded once more when files have them with the one that is added to them."""
LAYERS = {"lfm2_vl": 4, "qwen3_5": 4, "qwen3_5_moe": 4}
"""Layers of the language models; fewer are compiled sooner."""


class Case(NamedTuple):
    family: str
    path: Path
    runner: IreeRunner
    own: ImageProcessor


Open = Callable[[str], Case]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def case(torch: Any, load: Load, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    made: dict[str, Case] = {}

    def open_case(family: str) -> Case:
        if family not in made:
            folder, layers = tmp_path_factory.mktemp(family), LAYERS.get(family, 6 if "gemma" in family else 2)
            path = make_vision_checkpoint(folder, family, text={"num_hidden_layers": layers})
            own = ImageProcessor.of(path)
            assert own is not None
            made[family] = Case(family, path, load(path, context=CONTEXT, slots=3), own)
        return made[family]

    yield open_case
    for each in made.values():
        each.runner.close()


def ids_of(case: Case, size: tuple[int, int], text: int = 5) -> tuple[list[int], tuple[Any, ...]]:
    """Return the tokens of a prompt with a text, an image, and a text, and the patches of the image."""
    parts = case.own.prepare(as_file(picture(*size))).parts
    ids = list(range(5, 5 + text))
    for part in parts:
        run = [11] * (part.offsets[-1] + 1)
        for offset in part.offsets:
            run[offset] = case.own.image_token
        ids += [*run, 10, 11]
    return [*ids, 12, 13, 14], parts


@pytest.mark.parametrize("family", CASES)
def test_logits_and_tokens_are_those_of_transformers(torch: Any, family: str, case: Open) -> None:
    compare(torch, case(family))


def compare(torch: Any, mine: Case) -> None:
    """Compare the logits behind a prompt, and an answer."""
    family, size = mine.family, (60, 44)
    runner, (ids, parts) = mine.runner, ids_of(mine, size)
    inputs = {**process(family, mine.path, picture(*size))[0], "input_ids": torch.tensor([ids])}
    kinds = torch.tensor([[int(token == mine.own.image_token) for token in ids]])
    if family == "gemma3":
        inputs["token_type_ids"] = kinds
    elif family.startswith(("qwen", "gemma", "glm", "paddle")):
        inputs["mm_token_type_ids"] = kinds
    model = load_model(family, mine.path)
    with torch.no_grad():
        expected = model(**with_masks(family, model, inputs)).logits[0, -1].numpy()
        answer = model.generate(**inputs, max_new_tokens=COUNT, do_sample=False)[0, len(ids) :].tolist()
    prompt = Prompted.of(runner, ids, mine.own.image_token, parts)
    runner.reset(0)
    np.testing.assert_allclose(prompt.last_logits(runner), expected, rtol=0, atol=ERROR * np.abs(expected).max())
    runner.reset(0)
    assert prompt.answer(runner, prompt.prefill(runner, []), len(answer)) == answer


@pytest.mark.parametrize("family", PROJECTED)
def test_gguf_files_have_the_logits_of_safetensors(family: str, case: Open, load: Load, tmp_path: Path) -> None:
    mine = case(family)
    ids, parts = ids_of(mine, (60, 44))
    prompt = Prompted.of(mine.runner, ids, mine.own.image_token, parts)
    mine.runner.reset(0)
    expected = prompt.last_logits(mine.runner)
    runner = load(make_projected(mine.path, tmp_path), context=CONTEXT, slots=3)
    try:
        found = Prompted.of(runner, ids, mine.own.image_token, parts).last_logits(runner)
    finally:
        runner.close()
    if family in CENTRED:
        np.testing.assert_allclose(found, expected, rtol=0, atol=ERROR * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(found, expected)


def test_compiling_ahead_finds_the_graphs_of_a_server(
    case: Open, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the tower has a file of its own. Of all graphs those are looked for that a worker has at its start."""
    mine, everything = case(OFTEN), GraphPlan.everything
    ready = mine.runner.graphs.ready
    monkeypatch.setattr(GraphPlan, "everything", lambda plan: [each for each in everything(plan) if ready >= set(each)])
    for path in (mine.path, make_projected(mine.path, tmp_path)):
        mmproj = "auto" if path == mine.path else str(tmp_path / "mmproj-model.gguf")
        options = LoadOptions(
            device="local-task", dtype="float32", slots=3, context=CONTEXT, cache_dir=cache_dir, mmproj=mmproj
        )
        built = list(compile_ahead(path, ModelConfig.from_dir(path), options, lambda phase, done, total: None))
        assert {name for module in built for name in module.group} == ready
        assert all(module.seconds is None for module in built), "the same graphs are in the cache"
        assert any(module.group[0].startswith("tower_") for module in built)


@pytest.mark.exhaustive
def test_rows_of_an_image_have_the_padding_tokens_embeddings_of_layers(torch: Any, load: Load, tmp_path: Path) -> None:
    text = {"hidden_size_per_layer_input": 16, "num_hidden_layers": 6, "pad_token_id": 3}
    path = make_vision_checkpoint(tmp_path, "gemma4", text={**text, "use_bidirectional_attention": None})
    own = ImageProcessor.of(path)
    assert own is not None
    runner = load(path, context=CONTEXT, slots=3)
    try:
        assert not runner.capabilities.bidirectional_images
        compare(torch, Case("gemma4", path, runner, own))
    finally:
        runner.close()


@pytest.mark.parametrize("family", CASES)
def test_bits_are_the_same_in_any_chunks_and_beside_others(family: str, case: Open) -> None:
    compare_bits(case(family))


def compare_bits(mine: Case) -> list[int]:
    """Compare what is kept of a prompt, and its answer, cold, in chunks, beside another prompt, and replayed. Returns
    the answer."""
    runner = mine.runner
    ids, parts = ids_of(mine, (60, 44), text=13)
    first = ids.index(mine.own.image_token)
    prompt = Prompted.of(runner, ids, mine.own.image_token, parts)
    other = Prompted.of(runner, *reversed_parts(mine))
    for slot in range(3):
        runner.reset(slot)
    cold = prompt.prefill(runner, [])
    expected = prompt.kept(runner, 0), prompt.answer(runner, cold, COUNT)
    # Chunks that end before the image, behind it, and within texts; an image is whole where it attends both ways.
    behind = max(at for at, token in enumerate(prompt.tokens) if token < 0) + 1
    divided = [first, behind - first, 2] if runner.capabilities.bidirectional_images else [first - 5, 7, 3]
    for slot, lengths in ((1, divided), (2, [])):
        runner.reset(0)
        token = prompt.prefill(runner, lengths, slot, beside=None if lengths else (other, 0))
        assert prompt.kept(runner, slot) == expected[0]
        assert prompt.answer(runner, token, COUNT, slot) == expected[1]
    assert (Prompted.of(runner, ids, mine.own.image_token, parts).rows.rows == prompt.rows.rows).all()
    answer = expected[1]
    runner.reset(1)
    replayed = prompt.followed_by(answer[: COUNT // 2])
    assert replayed.answer(runner, replayed.prefill(runner, [], 1), COUNT - COUNT // 2, 1) == answer[COUNT // 2 :]
    return answer


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "quantize", "kv_dtype", "bound"),
    [
        (OFTEN, "int8", "auto", 0.05),
        (OFTEN, "int8", "int8", 0.05),
        (OFTEN, "int4", "int8", 0.4),
        ("llava_onevision", "int8", "auto", 0.05),
    ],
)
def test_quantized_text_beside_a_tower(
    family: str, quantize: str, kv_dtype: str, bound: float, case: Open, load: Load
) -> None:
    """The tower is not quantized. `bound` is the largest error of a logit, beside the largest logit."""
    mine = case(family)
    runner = load(mine.path, context=CONTEXT, slots=3, quantize=quantize, kv_dtype=kv_dtype)
    try:
        ids, parts = ids_of(mine, (60, 44))
        found, expected = (
            Prompted.of(each, ids, mine.own.image_token, parts).last_logits(each) for each in (runner, mine.runner)
        )
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        assert 1e-4 < error < bound, error
        compare_bits(mine._replace(runner=runner))
    finally:
        runner.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["internvl", "llava_onevision"])
def test_tokens_of_tiles_are_those_of_an_undisturbed_run(family: str, case: Open, load: Load) -> None:
    mine, others = case(family), list[IreeRunner]()

    def another() -> IreeRunner:
        others.append(load(mine.path, context=CONTEXT, slots=3))
        return others[-1]

    try:
        run_tiled_gate(mine.runner, mine.path, another)
    finally:
        for each in others:
            each.close()


def test_rows_of_images_that_another_worker_has_computed_lead_to_the_same_tokens(case: Open) -> None:
    mine = case(OFTEN)
    runner, (ids, parts) = mine.runner, ids_of(mine, (60, 44), text=13)
    prompt = Prompted.of(runner, ids, mine.own.image_token, parts)
    for slot in range(3):
        runner.reset(slot)
    expected = prompt.answer(runner, prompt.prefill(runner, []), COUNT)
    most = len(prompt.tokens) - 1
    rows = bytes(runner.read_rows(0, 0, most))
    runner.reset(0)
    runner.write_rows(1, 0, rows)
    (token,) = runner.prefill([prompt.chunk(1).part(most, 1)], [GREEDY])
    assert prompt.answer(runner, token, COUNT, slot=1) == expected


def reversed_parts(case: Case) -> tuple[list[int], int, tuple[Any, ...]]:
    ids, parts = ids_of(case, (24, 40), text=3)
    return ids, case.own.image_token, parts


def test_images_computed_in_turns_have_the_bits_of_each_alone(case: Open) -> None:
    mine = case(OFTEN)
    vision = mine.runner.vision
    assert vision is not None
    images = [mine.own.prepare(as_file(picture(*size))).parts[0] for size in ((60, 44), (24, 40))]
    alone = [finish(vision.begin(each)) for each in images]
    opened = [vision.begin(each) for each in images]
    assert vision.memory()["vision_buffers"] > 0
    left = dict(enumerate(opened))
    while left:
        left = {number: each for number, each in left.items() if not each.advance()}
    for encoding, rows in zip(opened, alone, strict=True):
        assert (encoding.rows() == rows).all()
        encoding.close()
        encoding.close()
    assert vision.memory()["vision_buffers"] == 0
    assert mine.runner.memory()["vision_weights"] == vision.memory()["vision_weights"]


@pytest.mark.exhaustive
def test_an_image_that_attends_both_ways_is_computed_whole(case: Open) -> None:
    mine = case("gemma3")
    ids, parts = ids_of(mine, (60, 44))
    prompt, first = Prompted.of(mine.runner, ids, mine.own.image_token, parts), ids.index(mine.own.image_token)
    mine.runner.reset(0)
    with pytest.raises(ValueError, match="ends: an image of slot 0 does not fit into one prefill call"):
        mine.runner.prefill([prompt.chunk().part(0, first + 1)], [GREEDY])


def test_the_memory_of_a_tower_is_known_before_it_is_loaded(case: Open) -> None:
    mine = case(OFTEN)
    spec = WorkerSpec("w0", "model", str(mine.path), backend="iree", dtype="float32")
    assert vision_bytes(spec, "float32") == mine.runner.memory()["vision_weights"] > 0
    without = replace(spec, vision=False)
    assert vision_bytes(without, "float32") == 0
    config = ModelConfig.from_dir(mine.path)
    shown, text = (MemoryFigures.of(each, "iree", config).weights["none"] for each in (spec, without))
    assert shown is not None
    assert text is not None
    assert shown - text == mine.runner.memory()["vision_weights"]


def test_without_the_tower_the_graphs_are_those_of_a_text(case: Open, load: Load) -> None:
    mine = case(OFTEN)
    runner = load(mine.path, context=CONTEXT, slots=3, vision=False)
    try:
        with_tower, without = mine.runner.graphs.builder.plan, runner.graphs.builder.plan
        assert runner.vision is None
        assert runner.capabilities.embedding_width == 0
        names = {name for group in without.everything() for name in group}
        more = {name for group in with_tower.everything() for name in group} - names
        assert more
        assert all(name.startswith((EMBEDDED, "tower_")) for name in more)
        for group in without.everything():
            assert with_tower.describe(group) == without.describe(group)
    finally:
        runner.close()
