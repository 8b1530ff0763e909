"""Vision towers in GGUF files of their own: what is read of them is what the safetensors of the same model say."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import structlog
from gguf import GGMLQuantizationType as Type
from msgspec.structs import replace

from tests.reference.vision.test_vision import as_file, picture
from tests.vision_checkpoints import make_vision_checkpoint
from tests.vision_checkpoints.projector_files import (
    KINDS,
    PUBLISHED,
    make_language_model,
    make_projected,
    make_projector,
)
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.errors import LoadRefused
from workers.inspection.inspection import Inspection
from workers.inspection.tower_view import TowerView
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe
from workers.process.startup.projector import log_projector
from workers.vision.processor import ImageProcessor
from workers.vision.projectors.projector_file import ProjectorUnfit
from workers.vision.tower import VisionTower, find_tower, no_images

pytestmark = pytest.mark.reference
SIZES = ((64, 64), (300, 200), (40, 90))
FAMILY = "qwen3_vl"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return make_vision_checkpoint(tmp_path_factory.mktemp("checkpoint"), FAMILY, **PUBLISHED[FAMILY])


@pytest.fixture(scope="module")
def language_model(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("language") / "model.gguf"
    make_language_model(checkpoint, file)
    return file


@pytest.fixture
def model(language_model: Path, tmp_path: Path) -> Path:
    """The language model in a folder of its own."""
    return Path(shutil.copy(language_model, tmp_path))


def tower_of(path: Path, mmproj: str = "auto") -> VisionTower:
    found = find_tower(path, mmproj)
    assert found is not None, no_images(path, mmproj)
    return found


def processor_of(path: Path, mmproj: str = "auto") -> ImageProcessor:
    found = ImageProcessor.of(path, mmproj)
    assert found is not None
    return found


@pytest.mark.parametrize("family", sorted(KINDS))
def test_a_projector_is_the_tower_of_its_safetensors(family: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = make_vision_checkpoint(tmp_path / "checkpoint", family, **PUBLISHED.get(family, {}))
    file = make_projected(path, tmp_path)
    expected, found = tower_of(path), tower_of(file)
    assert found.config == expected.config
    parameters = found.weights()
    for name, value in expected.weights().items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)
    config, text = ModelConfig.from_dir(path), ModelConfig.from_dir(file)
    own = "llama" if family == "pixtral" else config.family.replace("gemma4_unified_text", "gemma4_text")
    assert (text.family, text.hidden_size, text.vocab_size) == (own, config.hidden_size, config.vocab_size)
    first, second = processor_of(path), processor_of(file)
    assert (second.image_token, second.placeholder) == (first.image_token, first.placeholder)
    for size in SIZES:
        one, other = (each.prepare(as_file(picture(*size))) for each in (first, second))
        assert other.text == one.text
        for part, same in zip(one.parts, other.parts, strict=True):
            np.testing.assert_array_equal(same.values, part.values)
            np.testing.assert_array_equal(same.places, part.places)


def test_ranges_of_clipped_matrices_are_read_and_small_models_read_their_images_causally(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = {"hidden_size_per_layer_input": 16, "use_bidirectional_attention": None}
    changes = PUBLISHED["gemma4"]["vision"] | {"use_clipped_linears": True, "standardize": False}
    path = make_vision_checkpoint(tmp_path / "checkpoint", "gemma4", text=text, vision=changes)
    file = make_projected(path, tmp_path)
    expected, found = tower_of(path), tower_of(file)
    assert found.config == expected.config
    assert found.config.clipped
    assert found.config.bidirectional == "none"
    parameters = found.weights()
    for name, value in expected.weights().items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)
    make_projector(path, file.with_name("mmproj-model.gguf"), metadata={"clip.vision.attention.head_dim": 64})
    with pytest.raises(CheckpointError, match=r"v\.blk\.0\.attn_q\.weight: has the shape .*, of which no layers\.0\.q"):
        list(tower_of(file).weights().values())


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0])
def test_matrices_have_the_values_of_their_type(kind: Type, checkpoint: Path, model: Path) -> None:
    make_projector(checkpoint, model.with_name("mmproj-model.gguf"), kind)
    parameters, original = tower_of(model).weights(), tower_of(checkpoint).weights()
    name = "layers.0.up.weight"
    expected = gguf.dequantize(gguf.quantize(original[name].astype(np.float32), kind), kind)
    np.testing.assert_array_equal(parameters[name].astype(np.float32), expected)


def test_keys_that_change_nothing_are_accepted(checkpoint: Path, model: Path) -> None:
    keys = {
        "clip.has_text_encoder": False,
        "clip.has_llava_projector": True,
        "clip.audio.block_count": 3,
        "clip.vision.projector_type": "qwen3vl_merger",
        "clip.vision.mm_patch_merge_type": "flat",
        "clip.vision.image_grid_pinpoints": [],
        "clip.vision.window_size": 0,
    }
    make_projector(checkpoint, model.with_name("mmproj-model.gguf"), metadata=keys)
    assert tower_of(model).config == tower_of(checkpoint).config


def test_swapped_names_of_early_converters_are_read(checkpoint: Path, model: Path) -> None:
    file = model.with_name("mmproj-model.gguf")
    make_projector(checkpoint, file, renamed={"ffn_up": "ffn_down", "ffn_down": "ffn_up"})
    parameters, original = tower_of(model).weights(), tower_of(checkpoint).weights()
    for name in ("layers.1.up.weight", "layers.1.down.bias"):
        np.testing.assert_array_equal(parameters[name], original[name])


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"clip.projector_type": "ldpv2"}, r"clip\.projector_type: 'ldpv2' is not supported, only gemma3, gemma4v"),
    "family": ({"clip.projector_type": "gemma3"}, r"'gemma3' is for gemma3, and the model model\.gguf is qwen3vl"),
    "width": ({"clip.vision.projection_dim": 96}, r"clip\.vision\.projection_dim: is 96, and the model .* size of 64"),
    "sound": ({"clip.has_vision_encoder": False}, r"has_vision_encoder: is false: the projector takes no images"),
    "taps": ({"clip.vision.is_deepstack_layers": [True, False, False]}, r"has 1 layers, and .*n_deepstack_layers"),
    "many": ({"clip.vision.is_deepstack_layers": [True] * 4}, r"is not true or false for each of 3 layers"),
    "windows": ({"clip.vision.wa_layer_indexes": [0, 2]}, r"clip\.vision\.wa_layer_indexes: \[0, 2\] is not supported"),
    "gate": ({"clip.has_gate": True}, r"clip\.has_gate: True is not supported with a projector of type 'qwen3vl"),
    "tiles": ({"clip.vision.mm_patch_merge_type": "unpad"}, r"mm_patch_merge_type: 'unpad' is not supported"),
    "norm": ({"clip.vision.attention.layer_norm_epsilon": 1e-5}, r"layer_norm_epsilon: is .*, towers of .* with 1e-06"),
    "two types": ({"clip.vision.projector_type": "lfm2"}, r"is 'lfm2', and clip\.projector_type 'qwen3vl_merger'"),
    "architecture": ({"general.architecture": "llama"}, r"'llama' is no projector of images, whose files have 'clip'"),
}


@pytest.mark.parametrize("case", sorted(UNFIT))
def test_a_projector_that_does_not_fit_is_refused_if_it_is_named(case: str, checkpoint: Path, model: Path) -> None:
    metadata, problem = UNFIT[case]
    file = model.with_name("mmproj-other.gguf")
    make_projector(checkpoint, file, metadata=metadata)
    with pytest.raises(ProjectorUnfit, match=problem):
        find_tower(model, str(file))
    assert find_tower(model) is None, "one that is only found may be another model's"
    assert "the projector beside the model does not fit it" in no_images(model)


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"clip.vision.block_count": 0}, r"clip\.vision\.block_count: 0 is not an integer from 1"),
    "untyped": ({"clip.projector_type": None}, r"clip\.projector_type: is missing or no string"),
    "heads": ({"clip.vision.attention.head_count": 5}, r"num_heads: 5 heads do not divide"),
    "patch": ({"clip.vision.patch_size": 8}, r"v\.patch_embd\.weight: has the shape .* says \(32, 384\)"),
    "lacking": ({"clip.vision.block_count": 4}, r"v\.blk\.3\.ln1\.weight: the tensor is missing"),
}


@pytest.mark.parametrize("case", sorted(DAMAGED))
def test_a_damaged_projector_is_refused(case: str, checkpoint: Path, model: Path) -> None:
    metadata, problem = DAMAGED[case]
    if case == "lacking":
        metadata = metadata | {"clip.vision.is_deepstack_layers": [True, True, False, False]}
    make_projector(checkpoint, model.with_name("mmproj-other.gguf"), metadata=metadata)
    with pytest.raises(CheckpointError, match=problem):
        list(tower_of(model).weights().values())


def test_a_tensor_that_is_not_read_does_not_fit(checkpoint: Path, model: Path) -> None:
    file = model.with_name("mmproj-other.gguf")
    make_projector(checkpoint, file, renamed={"v.deepstack.1.fc1": "v.deepstack.2.fc1"})
    with pytest.raises(ProjectorUnfit, match=r"v\.deepstack\.2\.fc1\.\w+: the tensor is not part of a tower"):
        find_tower(model, str(file))


@pytest.mark.parametrize("lacking", ["sections", "token"])
def test_a_language_model_without_what_images_need_is_refused(lacking: str, checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    changed: dict[str, Any] = {"qwen3vl.rope.dimension_sections": [4, 4]}
    if lacking == "token":
        tokens = gguf.GGUFReader(_written(checkpoint, tmp_path)).fields["tokenizer.ggml.tokens"].contents()
        changed = {"tokenizer.ggml.tokens": [each.replace("<|image_pad|>", "<|image|>") for each in tokens]}
    make_language_model(checkpoint, file, metadata=changed)
    make_projector(checkpoint, tmp_path / "mmproj.gguf")
    problem = {
        "sections": r"qwen3vl\.rope\.dimension_sections: \[4, 4\] is not a list of three sections",
        "token": r"tokenizer\.ggml\.tokens: have no token '<\|image_pad\|>', which images need \(mmproj\.gguf\)",
    }[lacking]
    with pytest.raises(CheckpointError, match=problem):
        find_tower(file, str(tmp_path / "mmproj.gguf"))


def _written(checkpoint: Path, folder: Path) -> Path:
    make_language_model(checkpoint, folder / "first.gguf")
    return folder / "first.gguf"


def test_a_model_without_one_projector_takes_no_images(checkpoint: Path, model: Path) -> None:
    assert "no mmproj file is beside it" in no_images(model)
    for name in ("mmproj-a.gguf", "mmproj-b.gguf"):
        make_projector(checkpoint, model.with_name(name))
    assert "name one of them with --mmproj: mmproj-a.gguf, mmproj-b.gguf" in no_images(model)
    spec = WorkerSpec(name="w", model_name="m", model_path=str(model), backend="iree", device="local-task", context=64)
    with structlog.testing.capture_logs() as logs:
        log_projector(spec)
        log_projector(replace(spec, mmproj="none"))
        log_projector(replace(spec, vision=False))
    assert [(each["event"], each["path"]) for each in logs] == [("projector_left_out", str(model.parent))]
    assert "name one of them with --mmproj" in logs[0]["reason"]
    assert find_tower(model, str(model.with_name("mmproj-b.gguf"))) is not None
    assert no_images(model, "none") == "the projector of images is left out by --mmproj none"
    with pytest.raises(CheckpointError, match="name the file of the model, and this one with --mmproj"):
        ModelConfig.from_dir(model.with_name("mmproj-a.gguf"))
    with pytest.raises(CheckpointError, match="is no GGUF file, and has its vision tower in itself"):
        find_tower(checkpoint, str(model.with_name("mmproj-a.gguf")))


def test_an_inspection_describes_the_projector(checkpoint: Path, model: Path) -> None:
    spec = WorkerSpec(name="w", model_name="m", model_path=str(model), backend="iree", device="local-task", context=64)
    assert "no mmproj file is beside it" in Inspection.of(spec, ["iree"]).vision.problem
    file = model.with_name("mmproj-model.gguf")
    make_projector(checkpoint, file)
    found, expected = Inspection.of(spec, ["iree"]), TowerView.of(checkpoint)
    assert found.served
    assert found.vision == dataclasses.replace(expected, file=str(file))
    assert found.tensors is not None
    uses = {each.name: (each.use, each.to) for each in found.tensors.tensors}
    assert uses["v.blk.1.attn_qkv.weight"] == ("read", ("1.vision q", "1.vision k", "1.vision v"))
    assert uses["v.deepstack.1.fc1.bias"] == ("read", ("1.vision taps up bias",))
    assert {use for use, _ in uses.values()} == {"read"}
    left_out = Inspection.of(replace(spec, mmproj="none"), ["iree"])
    assert left_out.vision.problem == "the projector of images is left out by --mmproj none"


def test_another_projector_makes_other_digests(checkpoint: Path, model: Path) -> None:
    spec = WorkerSpec(name="w", model_name="m", model_path=str(model), backend="iree", device="local-task", context=64)
    image, file = as_file(picture(64, 64)), model.with_name("mmproj-model.gguf")
    digests, keys = [describe(spec).model_digest], []
    for seed in (0, 1):
        other = make_vision_checkpoint(model.parent / str(seed), FAMILY, seed=seed, **PUBLISHED[FAMILY])
        make_projector(other, file)
        digests.append(describe(spec).model_digest)
        keys.append(processor_of(model).prepare(image).parts[0].key)
        assert describe(replace(spec, mmproj=str(file))).model_digest == digests[-1], "named or found is the same"
    assert len(set(digests)) == 3
    assert len(set(keys)) == 2, "rows of the same image differ"
    unusual = Path(shutil.copy(file, model.with_name("sha256-0")))  # as Ollama names files
    assert describe(replace(spec, mmproj=str(unusual))).model_digest not in digests[:2], "any name is read"
    for without in ({"mmproj": "none"}, {"vision": False}):
        assert describe(replace(spec, **without)).model_digest == digests[0]
    with pytest.raises(LoadRefused, match="mmproj: has no effect without a vision tower"):
        describe(replace(spec, mmproj=str(file), vision=False))
