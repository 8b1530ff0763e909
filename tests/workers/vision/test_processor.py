"""The preprocessing of a checkpoint is read, or refused by the field that is not supported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.vision_checkpoints import VISION_FAMILIES, make_vision_description
from tests.workers.vision.image_files import as_file, picture
from workers.checkpoints.json_files import CheckpointError
from workers.vision.image_refused import ImageRefused
from workers.vision.outline import ImageOutline
from workers.vision.preparation.pixtral import BREAK
from workers.vision.processor import ImageProcessor
from workers.vision.tower import find_tower, no_images

Make = Callable[..., ImageProcessor]


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Make:
    def make(family: str, **changes: Any) -> ImageProcessor:
        found = ImageProcessor.of(make_vision_description(tmp_path_factory.mktemp(family), family, **changes))
        assert found is not None
        return found

    return make


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
def test_tokens_are_known_before_an_image_is_decoded(processor: Make, family: str) -> None:
    own = processor(family)
    for width, height in ((40, 70), (200, 30), (1, 1), (9, 100), (150, 150)):
        for detail in ("auto", "low", "high"):
            image = as_file(picture(width, height), detail=detail)
            prepared = own.prepare(image)
            counts = [part.count for part in prepared.parts]
            assert own.outline(image).rows == sum(counts) == prepared.text.count(own.image_text)
            broken = replace(image, data=image.data[: 3 * len(image.data) // 4])
            made = own.outline(image).made
            parts = tuple(part.offsets for part in prepared.parts)
            outline = ImageOutline(prepared.text, parts, made if own.config.newline else 0)
            assert own.outline(image) == own.outline(broken) == outline
            assert sum(len(part.values) for part in prepared.parts) == made * own.config.group
            places, used = places_of(prepared.text, own.image_text), 0
            for part in prepared.parts:
                run = places[used : used + part.count]
                used += part.count
                assert [place - run[0] for place in run] == list(part.offsets)
                assert part.fits(len(part.values) // own.config.group)
                assert part.values.shape[1] == own.config.patch_values
                assert part.places.shape == (len(part.values), 2)
                assert len(part.key) == 16
                assert {tuple(place) for place in part.places} == set(np.ndindex(part.grid))


def places_of(text: str, token: str) -> list[int]:
    """Return the places of a token in a text, where Pixtral's end of a row is a token as well."""
    marked = text.replace(token, "\0").replace(BREAK, " ")
    return [at for at, each in enumerate(marked) if each == "\0"]


def test_rows_are_not_those_of_another_version(processor: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix tier may be that of an older version, which prepared or placed images otherwise."""
    image = as_file(picture(40, 70))
    (part,) = processor("qwen3_vl").prepare(image).parts
    assert processor("qwen3_vl").prepare(image).parts[0].key == part.key
    monkeypatch.setattr("workers.vision.processor.__version__", "0.0.0")
    assert processor("qwen3_vl").prepare(image).parts[0].key != part.key


@pytest.mark.parametrize(
    ("family", "counts"), [("gemma4", (70, 70, 140)), ("lfm2_vl", (16, 80, 80)), ("smolvlm", (4, 68, 68))]
)
def test_detail_chooses_the_number_of_tokens(processor: Make, family: str, counts: tuple[int, ...]) -> None:
    own = processor(family)
    found = [own.tokens_of_size(1000, 1000, detail) for detail in ("low", "auto", "high")]
    assert all(most >= tokens > 0.8 * most for tokens, most in zip(found, counts, strict=True))


def test_images_beside_others_have_no_tiles_in_llava_onevision(processor: Make) -> None:
    own, images = processor("llava_onevision"), (as_file(picture(50, 50)), as_file(picture(9, 9), detail="high"))
    assert own.among(images, 1) == images
    several = own.among(images, 2)
    assert [image.detail for image in several] == ["low", "low"]
    assert [own.outline(image).rows for image in several] == [37, 37]
    assert own.outline(images[0]).rows > 100
    assert processor("llava").among(images, 2) == images


def test_low_detail_of_qwen(processor: Make) -> None:
    own = processor("qwen3_vl", preprocessor={"size": {"shortest_edge": 256, "longest_edge": 1 << 20}})
    assert own.tokens_of_size(1000, 1000, "low") == 256
    assert own.tokens_of_size(1000, 1000, "high") == own.tokens_of_size(1000, 1000) > 10_000
    for size in ({"min_pixels": 256, "max_pixels": 1 << 20}, {"shortest_edge": 256, "longest_edge": 1 << 20}):
        older = processor("qwen2_vl", preprocessor={"min_pixels": ..., "max_pixels": ..., "size": size})
        assert older.tokens_of_size(1000, 1000) == own.tokens_of_size(1000, 1000)


def test_the_same_pixels_have_the_same_key(processor: Make) -> None:
    own, image = processor("qwen3_vl"), picture(40, 30)
    (png,) = own.prepare(as_file(image, "png")).parts
    (webp,) = own.prepare(as_file(image, "webp", lossless=True)).parts
    (other,) = own.prepare(as_file(picture(40, 30, seed=1))).parts
    assert png.key == webp.key != other.key
    (changed,) = processor("qwen3_vl", preprocessor={"image_mean": [0.5, 0.5, 0.4]}).prepare(as_file(image)).parts
    assert changed.key != png.key
    tiles = processor("smolvlm").prepare(as_file(image)).parts
    assert len({tile.key for tile in tiles}) == len(tiles) > 2


@pytest.mark.parametrize(
    "family", ["glm4v", "lfm2_vl", "llava", "llava_onevision", "paddleocr_vl", "pixtral", "qwen2_5_vl", "qwen3_vl"]
)
def test_long_images_are_refused(processor: Make, family: str) -> None:
    own = processor(family)
    most = 20 if family == "llava" else 200
    own.tokens_of_size(most, 1)
    with pytest.raises(ImageRefused, match=f"{most + 1} x 1 pixels: one side is more than {most} times the other"):
        own.tokens_of_size(most + 1, 1)


def test_lfm2_resizes_whatever_its_settings_say(processor: Make) -> None:
    plain, other = processor("lfm2_vl"), processor("lfm2_vl", preprocessor={"do_resize": False})
    assert other.tokens_of_size(70, 50) == plain.tokens_of_size(70, 50)


def test_pan_and_scan_of_gemma3(processor: Make) -> None:
    on = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16}
    own = processor("gemma3", preprocessor=on)
    assert own.tokens_of_size(100, 100) == 4
    prepared = own.prepare(as_file(picture(100, 34)))
    assert len(prepared.parts) == 4
    assert prepared.text.startswith("Here is the original image \n\n<start_of_image>")
    assert own.tokens_of_size(20, 100) == own.tokens_of_size(100, 20) == 5 * 4
    assert own.tokens_of_size(100, 15) == 4  # crops would be too small
    assert processor("gemma3").tokens_of_size(100, 34) == 4


def test_settings_of_a_newer_processor_come_first(tmp_path: Path) -> None:
    path = make_vision_description(tmp_path, "qwen3_vl")
    settings = json.loads((path / "preprocessor_config.json").read_text())
    newer = {"image_processor": settings | {"size": {"shortest_edge": 64, "longest_edge": 64 * 3}}}
    (path / "processor_config.json").write_text(json.dumps(newer))
    (path / "preprocessor_config.json").unlink()
    own = ImageProcessor.of(path)
    assert own is not None
    assert own.tokens_of_size(100, 100) == 1
    (path / "processor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json: there is no such file, which images need"):
        ImageProcessor.of(path)


def test_models_without_a_tower_that_is_supported(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain")
    assert ImageProcessor.of(plain) is None
    assert no_images(plain) == "the model has no vision tower"
    path = make_vision_description(tmp_path / "pixtral", "qwen3_vl", fields={"architectures": ["LlavaForC"]})
    assert no_images(path) == "the vision tower of LlavaForC is not supported, only its text"
    path = make_vision_description(tmp_path / "converted", "qwen3_vl")
    assert no_images(path) == ""
    write_safetensors(path / "model.safetensors", {"language_model.a": np.zeros(1, np.float32)})
    assert "has the language model's tensors alone" in no_images(path)
    path = make_vision_description(tmp_path / "undescribed", "qwen3_vl", text={"mlp_bias": True})
    assert "the language model is not described" in no_images(path)
    path = make_vision_description(tmp_path / "gemma4", "gemma4")
    fields = json.loads((path / "config.json").read_text()) | {"vision_config": None}
    (path / "config.json").write_text(json.dumps(fields))
    assert no_images(path) == "config.json describes no vision tower: vision_config is null"
    assert ImageProcessor.of(path) is None


@pytest.mark.parametrize(
    ("family", "place", "changes", "words"),
    [
        ("gemma3", "fields", {"mm_tokens_per_image": 5}, "mm_tokens_per_image: 5 tokens do not divide"),
        ("gemma3", "fields", {"image_token_index": ...}, "image_token_id: is missing"),
        ("gemma3", "preprocessor", {"size": {"height": 28, "width": 28}}, "size: is not 32 pixels"),
        ("gemma3", "preprocessor", {"size": {"height": 28, "width": 32}}, "size: .* is not one side"),
        ("gemma4", "vision", {"num_key_value_heads": 1}, "num_key_value_heads: is not num_attention_heads"),
        ("gemma4", "vision", {"head_dim": 18}, "head_dim: 18 lanes are no multiple of 4"),
        ("gemma4", "vision", {"attention_bias": True}, "attention_bias: true is not supported"),
        ("gemma4", "vision", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type: 'yarn' is not supported"),
        ("gemma4", "preprocessor", {"max_soft_tokens": 71}, "max_soft_tokens: 71 is not one of 70, 140"),
        ("gemma4", "preprocessor", {"max_soft_tokens": 280}, "leaves the table of positions"),
        ("gemma4_unified", "vision", {"output_proj_dims": 32}, "output_proj_dims: is not mm_embed_dim, 48"),
        ("gemma4_unified", "preprocessor", {"patch_size": 8}, "patch_size: and pooling_kernel_size are not those"),
        ("glm4v", "vision", {"attention_bias": True}, "attention_bias: true is not supported"),
        ("internvl", "vision", {"use_qk_norm": True}, "use_qk_norm: True is not supported, only False"),
        ("internvl", "vision", {"attention_bias": ...}, "attention_bias: False is not supported, only True"),
        ("internvl", "fields", {"downsample_ratio": 0.4}, "downsample_ratio: 0.4 does not divide 6 patches"),
        ("internvl", "preprocessor", {"min_patches": 5}, "min_patches: 5 is above max_patches, 4"),
        (
            "llava",
            "vision",
            {"model_type": "siglip_vision_model"},
            "model_type: 'siglip_vision_model' is not supported",
        ),
        ("llava", "fields", {"vision_feature_layer": [-2, -3]}, r"vision_feature_layer: \[-2, -3\] is not the number"),
        (
            "llava",
            "fields",
            {"vision_feature_select_strategy": "full"},
            "select_strategy: 'full' is not supported with",
        ),
        ("llava", "preprocessor", {"do_center_crop": False}, "do_center_crop: false is not supported"),
        ("llava", "preprocessor", {"size": {"shortest_edge": 32}}, "size: is not that of crop_size, 24 pixels"),
        ("mistral3", "vision", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type: 'yarn' is not supported"),
        ("mistral3", "vision", {"patch_size": [4, 8]}, r"patch_size: \[4, 8\] is not one side"),
        ("paddleocr_vl", "text", {"use_bias": True}, "use_bias: true is not supported"),
        ("lfm2_vl", "preprocessor", {"min_tiles": 7}, "min_tiles: 7 is above max_tiles, 6"),
        ("lfm2_vl", "preprocessor", {"tile_size": 33}, "tile_size: 33 pixels are no multiple of a token of 8"),
        ("lfm2_vl", "preprocessor", {"encoder_patch_size": 8}, "encoder_patch_size: is not that of the tower"),
        ("lfm2_vl", "fields", {"projector_hidden_act": "relu"}, "projector_hidden_act: 'relu' is not supported"),
        ("qwen2_5_vl", "vision", {"window_size": 7}, "window_size: is less than a token of 8 pixels"),
        ("qwen2_5_vl", "vision", {"fullatt_block_indexes": [4]}, "fullatt_block_indexes: is not a list of layers"),
        ("qwen2_5_vl", "text", {"rope_parameters": {"rope_type": "default"}}, "mrope_section: is missing"),
        ("qwen3_vl", "vision", {"num_heads": 3}, "num_heads: 3 heads do not divide a hidden size of 32"),
        ("qwen3_vl", "vision", {"hidden_act": "relu"}, "hidden_act: 'relu' is not supported for images"),
        ("qwen3_vl", "vision", {"in_channels": 1}, "in_channels: is not 3"),
        ("qwen3_vl", "vision", {"out_hidden_size": 32}, "out_hidden_size: is 32, but the language model has .* of 64"),
        ("qwen3_vl", "vision", {"deepstack_visual_indexes": [1, 0]}, "deepstack_visual_indexes: is not a list"),
        ("qwen3_vl", "fields", {"image_token_id": 5}, "image_token_id: 5 is not a special token"),
        ("qwen3_vl", "fields", {"vision_config": ...}, "vision_config: is missing"),
        ("qwen3_vl", "preprocessor", {"merge_size": 1}, "merge_size: is not that of the tower in config.json"),
        ("qwen3_vl", "preprocessor", {"do_resize": False}, "do_resize: false is not supported"),
        ("qwen3_vl", "preprocessor", {"resample": 4}, "resample: 4 is not supported, only 0, 1, 2, 3"),
        ("qwen3_vl", "preprocessor", {"image_std": [1, 0, 1]}, "image_std: is 0 for a channel"),
        ("qwen3_vl", "preprocessor", {"image_mean": [1]}, r"image_mean: \[1\] is not a list of three numbers"),
        ("qwen3_vl", "preprocessor", {"min_pixels": 9000}, "size: the least number of pixels, 9000, is above"),
        (
            "smolvlm",
            "preprocessor",
            {"max_image_size": {"longest_edge": 36}},
            "max_image_size: is not that of the tower",
        ),
        ("smolvlm", "fields", {"scale_factor": 3}, "scale_factor: 3 does not divide 8 patches"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, family: str, place: str, changes: dict[str, Any], words: str
) -> None:
    path = make_vision_description(tmp_path, family, **{place: changes})
    with pytest.raises(CheckpointError, match=words):
        ImageProcessor.of(path)


def test_a_missing_token_of_the_rows_of_an_image_is_named(tmp_path: Path) -> None:
    path = make_vision_description(tmp_path, "pixtral")
    file = path / "tokenizer.json"
    file.write_text(file.read_text().replace("[IMG_BREAK]", "[OTHER]"))
    with pytest.raises(CheckpointError, match=r"added_tokens: \[IMG_BREAK\] is missing, which images need"):
        ImageProcessor.of(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tower = find_tower(make_vision_description(tmp_path, "qwen3_vl"))
    assert tower is not None
    with pytest.raises(CheckpointError, match=r"patch_embed\.proj\.weight: the tensor is missing, which images need"):
        tower.weights()
