"""Images of each family, compared with transformers: preprocessing, prompts, and the rows that the tower makes."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from protocol.request import Image, ImageDetail
from tests.reference.vision_processors import expansion, process
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
Make = Callable[[str], Path]


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


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
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
        assert rows.shape == expected.shape == (processor.tokens_of(as_file(image)), tower.config.width)
        assert expected.std() > 0.1
        np.testing.assert_allclose(rows, expected, atol=ROWS)


def compare_pixels(family: str, inputs: dict[str, Any], parts: tuple[ImagePatches, ...]) -> None:
    """Compare the patches with the input of transformers' tower, in the order of rows there."""
    pixels = inputs["pixel_values"].numpy()
    for number, part in enumerate(parts):
        values = part.values
        if family.startswith("qwen"):
            wanted = pixels
            if part.order is not None:
                values = values.reshape(part.count, -1)[part.order].reshape(values.shape)
        elif family in ("gemma4", "lfm2_vl"):
            values = in_rows(part)
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


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
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
    assert ids.count(processor.image_token) == sum(processor.tokens_of(as_file(image)) for image in images)


def test_clipped_matrices_of_gemma4(torch: Any, tmp_path: Path) -> None:
    path = make_vision_checkpoint(tmp_path, "gemma4", vision={"use_clipped_linears": True, "standardize": False})
    tower = find_tower(path)
    assert tower is not None
    assert tower.config.clipped
    image = picture(*SIZES[0])
    inputs, _ = process("gemma4", path, image)
    with torch.no_grad():
        expected = load_model("gemma4", path).get_image_features(**inputs, return_dict=True).pooler_output[0].numpy()
    (part,) = loaded(path).prepare(as_file(image)).parts
    np.testing.assert_allclose(NumpyTower(tower.config, tower.weights()).rows(part), expected, atol=ROWS)


@pytest.mark.parametrize("family", [name for name in sorted(VISION_FAMILIES) if name.startswith("qwen")])
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
