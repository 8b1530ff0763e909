"""Images of each family, compared with transformers: preprocessing, prompts, and the rows that the tower makes."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from protocol.request import Image, ImageDetail
from tests.reference.vision.processors import expansion, image_processor, process, replaced
from tests.vision_checkpoints import VISION_FAMILIES, make_vision_checkpoint
from tests.vision_tower import NumpyTower
from workers.vision.mrope import axes_of
from workers.vision.patches import ImagePatches
from workers.vision.processor import ImageProcessor
from workers.vision.tower import find_tower

pytestmark = pytest.mark.reference

PIXELS = 1e-6
"""The largest difference of a pixel's number to transformers' image processors on Pillow."""
ROWS = 1e-4
"""The largest difference of a number of a row, of about 1, to the tower of transformers in float32."""
SIZES = ((60, 44), (37, 90), (150, 80))
"""Widths and heights of images."""
RATIOS = {"gemma4": 60, "gemma4_unified": 60, "lfm2_vl": 16, "llava": 20, "mistral3": 48, "pixtral": 48}
"""Ratios of sides from which transformers' processors fail with these settings, where no side is a whole token, or from
which images are refused."""
Make = Callable[[str], Path]
FAMILIES = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name.endswith("_moe") else [])
    for name in sorted(VISION_FAMILIES)
]
"""Those with experts have the towers and texts of those without."""


def picture(width: int, height: int, seed: int = 0) -> Pillow.Image:
    """Return an image of noise and a gradient, so that every part and every resampling differs."""
    noise = np.random.default_rng(seed).integers(0, 128, (height, width, 3))
    ramp = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).sum(-1) * 127 // (width + height)
    return Pillow.fromarray((noise + ramp[..., None]).astype(np.uint8))


def as_file(image: Pillow.Image, detail: ImageDetail = "auto") -> Image:
    data = io.BytesIO()
    image.save(data, "PNG")
    return Image("png", image.width, image.height, data.getvalue(), detail)


@pytest.fixture(scope="module")
def checkpoint(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = make_vision_checkpoint(tmp_path_factory.mktemp(family), family)
        return made[family]

    return make


def load_model(family: str, path: Path) -> Any:
    import transformers

    kind = getattr(transformers, f"{VISION_FAMILIES[family].name}ForConditionalGeneration")
    return kind.from_pretrained(path, attn_implementation="eager").eval()


def loaded(path: Path) -> ImageProcessor:
    processor = ImageProcessor.of(path)
    assert processor is not None
    return processor


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_and_rows(torch: Any, checkpoint: Make, family: str) -> None:
    path = checkpoint(family)
    tower, processor = find_tower(path), loaded(path)
    assert tower is not None
    ours, model = NumpyTower(tower.config, tower.weights()), load_model(family, path)
    for width, height in SIZES:
        image = picture(width, height)
        prepared = processor.prepare(as_file(image))
        inputs, _ = process(family, path, image)
        compare_pixels(family, inputs, prepared.parts)
        with torch.no_grad():
            found = model.get_image_features(**inputs, return_dict=True)
        layers = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
        joined = [torch.cat(list(each)) if isinstance(each, list | tuple) else each for each in layers]
        expected = torch.cat([each.reshape(-1, each.shape[-1]) for each in joined], dim=1).numpy()
        rows = np.concatenate([ours.rows(part) for part in prepared.parts])
        assert rows.shape == expected.shape == (processor.outline(as_file(image)).rows, tower.config.width)
        assert expected.std() > 0.1
        np.testing.assert_allclose(rows, expected, atol=ROWS)


def compare_pixels(family: str, inputs: dict[str, Any], parts: tuple[ImagePatches, ...]) -> None:
    """Compare the patches with the input of transformers' tower, in the order of rows there."""
    pixels = inputs["pixel_values"].numpy()
    for number, part in enumerate(parts):
        values = part.values
        if family == "llava_onevision":
            values = part.values.reshape(-1, 6, 6, 3, 4, 4).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 24, 24)
            wanted = pixels[0, :, :, :24, :24]
        elif family.startswith(("qwen", "glm")):
            wanted = pixels
            if part.order is not None:
                values = values.reshape(part.count, -1)[part.order].reshape(values.shape)
        elif family in ("gemma4", "gemma4_unified", "lfm2_vl", "paddleocr_vl"):
            values = in_rows(part)
            pixels = pixels[None].reshape(1, len(pixels), -1) if family == "paddleocr_vl" else pixels
            wanted = pixels[number][: len(values)]
            wanted = (wanted - np.float32(0.5)) * np.float32(2) if family == "gemma4" else wanted
        else:
            values, wanted = as_image(part), pixels.reshape(-1, *pixels.shape[-3:])[number]
        assert values.shape == wanted.shape
        np.testing.assert_allclose(values, wanted, rtol=0, atol=PIXELS)


def in_rows(part: ImagePatches) -> NDArray[np.float32]:
    """Return the patches by row and column."""
    return part.values[np.lexsort((part.places[:, 1], part.places[:, 0]))]


def as_image(part: ImagePatches) -> NDArray[np.float32]:
    """Put patches together to an image, [3, height, width]."""
    side = int((part.values.shape[1] // 3) ** 0.5)
    rows, columns = part.grid
    patches = in_rows(part).reshape(rows, columns, 3, side, side)
    return patches.transpose(2, 0, 3, 1, 4).reshape(3, rows * side, columns * side)


@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids_of_a_chat(checkpoint: Make, family: str) -> None:
    from transformers import AutoTokenizer

    path = checkpoint(family)
    processor, tokenizer = loaded(path), AutoTokenizer.from_pretrained(path)
    images = [picture(*size) for size in SIZES]
    content = [{"type": "text", "text": "Compare this "}]
    for image in images:
        content += [{"type": "image"}, {"type": "text", "text": f" of {image.width} pixels"}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    ours = theirs = text
    assert text.count(processor.placeholder) == len(images)
    before, *behind = text.split(processor.placeholder)
    ours = theirs = before
    for image, rest in zip(images, behind, strict=True):
        placeholder, replacement = expansion(family, path, image, tokenizer)
        prepared = processor.prepare(as_file(image))
        assert placeholder == processor.placeholder
        ours, theirs = ours + prepared.text + rest, theirs + replacement + rest
    assert ours == theirs
    ids = tokenizer(ours, add_special_tokens=False)["input_ids"]
    assert ids.count(processor.image_token) == sum(processor.outline(as_file(image)).rows for image in images)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        # Linear layers with clipped inputs and outputs, as in E2B and E4B.
        ("gemma4", {"vision": {"use_clipped_linears": True, "standardize": False}}),
        # Tiles that are no multiple of a patch, as in SmolVLM2-2.2B.
        ("smolvlm", {"vision": {"image_size": 35}, "preprocessor": {"max_image_size": {"longest_edge": 35}}}),
        ("lfm2_vl", {"fields": {"projector_use_layernorm": False, "projector_bias": False}}),
    ],
    ids=["gemma4-clipped", "smolvlm-uneven", "lfm2_vl-plain"],
)
def test_rows_with_other_settings(torch: Any, tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    path = make_vision_checkpoint(tmp_path, family, **changes)
    tower, image = find_tower(path), picture(*SIZES[0])
    assert tower is not None
    inputs, _ = process(family, path, image)
    with torch.no_grad():
        found = load_model(family, path).get_image_features(**inputs, return_dict=True).pooler_output
    expected = np.concatenate([each.numpy() for each in found])
    ours = NumpyTower(tower.config, tower.weights())
    rows = np.concatenate([ours.rows(part) for part in loaded(path).prepare(as_file(image)).parts])
    np.testing.assert_allclose(rows, expected, atol=ROWS)


def test_idefics3_is_read_as_smolvlm_is(torch: Any, tmp_path: Path) -> None:
    from transformers import Idefics3ForConditionalGeneration
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    path = make_vision_checkpoint(tmp_path, "smolvlm")
    fields = json.loads((path / "config.json").read_text())
    fields |= {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3"}
    fields["vision_config"]["model_type"] = "idefics3_vision"
    (path / "config.json").write_text(json.dumps(fields))
    tower, image = find_tower(path), picture(*SIZES[2])
    assert tower is not None
    settings = json.loads((path / "preprocessor_config.json").read_text())
    inputs = Idefics3ImageProcessorPil(**settings)(images=[image], return_tensors="pt")
    model = Idefics3ForConditionalGeneration.from_pretrained(path, attn_implementation="eager").eval()
    with torch.no_grad():
        found = model.get_image_features(**inputs, return_dict=True).pooler_output
    expected = np.concatenate([each.numpy() for each in found])
    parts = loaded(path).prepare(as_file(image)).parts
    compare_pixels("idefics3", inputs, parts)
    ours = NumpyTower(tower.config, tower.weights())
    np.testing.assert_allclose(np.concatenate([ours.rows(part) for part in parts]), expected, atol=ROWS)


def test_several_images_of_llava_onevision(torch: Any, checkpoint: Make) -> None:
    """They are made square, and have no tiles: a list for each prompt tells transformers how many it has."""
    family = "llava_onevision"
    path = checkpoint(family)
    tower, processor, images = find_tower(path), loaded(path), [picture(*size) for size in SIZES]
    assert tower is not None
    outputs = dict(image_processor(family, path)(images=[images], return_tensors="pt"))
    with torch.no_grad():
        found = load_model(family, path).get_image_features(**outputs, return_dict=True).pooler_output
    ours = NumpyTower(tower.config, tower.weights())
    files = processor.among(tuple(as_file(image) for image in images), len(images))
    for number, (file, expected) in enumerate(zip(files, found, strict=True)):
        (part,) = processor.prepare(file).parts
        assert processor.outline(file).text == replaced(family, path, outputs, number)[1]
        compare_pixels(family, {"pixel_values": outputs["pixel_values"][number][None]}, (part,))
        np.testing.assert_allclose(ours.rows(part), expected.numpy(), atol=ROWS)


@pytest.mark.parametrize(
    "family",
    [each for each in FAMILIES if str(each.values[0]).startswith(("qwen", "glm", "paddle"))],
)
def test_positions_on_three_axes(torch: Any, checkpoint: Make, family: str) -> None:
    """Two images side by side, and one behind a text, and at the end of a prompt."""
    path = checkpoint(family)
    processor, model = loaded(path), load_model(family, path).model
    parts = [processor.prepare(as_file(picture(*size))).parts[0] for size in SIZES]
    tokens, kinds, places = [5] * 7, [0] * 7, []
    for part, text in zip(parts, (1, 4, 0), strict=True):
        places.append((len(tokens), part))
        tokens += [processor.image_token] * part.count + [6] * text
        kinds += [1] * part.count + [0] * text
    grids = torch.tensor([[1, *part.grid] for part in parts])
    expected, delta = model.get_rope_index(torch.tensor([tokens]), torch.tensor([kinds]), image_grid_thw=grids)
    axes, following = axes_of(tokens, places)
    np.testing.assert_array_equal(axes, expected[:, 0].numpy())
    assert following == len(tokens) + int(delta)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
def test_many_sizes(checkpoint: Make, family: str) -> None:
    from transformers import AutoTokenizer

    path = checkpoint(family)
    processor, tokenizer = loaded(path), AutoTokenizer.from_pretrained(path)
    rng = np.random.default_rng(5)
    for number in range(60):
        width, height = (int(each) for each in np.exp(rng.uniform(0, 5.8, 2)))
        if max(width, height) > RATIOS.get(family, 200) * min(width, height):
            continue
        image = picture(width, height, number)
        prepared = processor.prepare(as_file(image))
        inputs, _ = process(family, path, image)
        compare_pixels(family, inputs, prepared.parts)
        assert prepared.text == expansion(family, path, image, tokenizer)[1]
