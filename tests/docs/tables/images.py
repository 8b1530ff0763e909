"""The families of vision towers, asked of the code: `python -m tests.docs.tables.images` writes the table.

The numbers of tokens are those of preprocessing with published settings; the language models are tiny ones.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.vision_checkpoints import VISION_FAMILIES, make_vision_description
from workers.vision.processor import ImageProcessor

PAGE = Path(__file__).parents[3] / "docs" / "features.md"
BEGIN, END = "<!-- made by `python -m tests.docs.tables.images` -->\n", "<!-- images end -->\n"
BLOCK = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)
WIDTH, HEIGHT = 1024, 1024
DETAILS = ("low", "auto", "high")


class Published(NamedTuple):
    """A published model of a family, as far as its preprocessing goes."""

    models: str
    sizes: str
    """The rule by which images are resized."""
    vision: Mapping[str, Any]
    preprocessor: Mapping[str, Any]
    fields: Mapping[str, Any] = {}


BOUNDED = "multiples of a token, with a bounded number of pixels"
QWEN2 = Published(
    "", BOUNDED, {"patch_size": 14}, {"patch_size": 14, "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 16384}
)
QWEN3 = Published(
    "",
    BOUNDED,
    {"patch_size": 16},
    {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
)
GLM = Published(
    "",
    BOUNDED,
    {"patch_size": 14, "image_size": 336},
    {"patch_size": 14, "size": {"shortest_edge": 12544, "longest_edge": 9633792}},
)
GRIDS = [[height, width] for height in range(384, 2305, 384) for width in range(384, 2305, 384)]
PUBLISHED: Mapping[str, Published] = {
    "gemma3": Published(
        "Gemma 3, 4B and above",
        "896 x 896, crops if the settings ask for them",
        {"image_size": 896, "patch_size": 14},
        {"size": {"height": 896, "width": 896}},
        {"mm_tokens_per_image": 256},
    ),
    "gemma4": Published(
        "Gemma 4",
        "the ratio is kept, tokens up to a budget",
        {"patch_size": 16, "position_embedding_size": 10240},
        {"patch_size": 16, "max_soft_tokens": 280},
    ),
    "gemma4_unified": Published(
        "Gemma 4 12B, whose patches are projected without a tower",
        "the ratio is kept, tokens up to a budget",
        {"patch_size": 16, "mm_posemb_size": 1120},
        {"patch_size": 16, "max_soft_tokens": 280},
    ),
    "glm4v": GLM._replace(models="GLM-4.1V, and GLM-4.6V-Flash (`glm46v`)"),
    "glm4v_moe": GLM._replace(models="GLM-4.5V and GLM-4.6V"),
    "glm_ocr": GLM._replace(models="GLM-OCR"),
    "internvl": Published(
        "InternVL 3 and 3.5 in Hugging Face's format, but for those with InternViT-6B",
        "tiles of the tower's size, and the whole image",
        {"image_size": [448, 448], "patch_size": [14, 14]},
        {"size": {"height": 448, "width": 448}, "max_patches": 12},
    ),
    "llava": Published(
        "LLaVA 1.5",
        "the middle of the image, 336 x 336",
        {"image_size": 336, "patch_size": 14},
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
    ),
    "llava_onevision": Published(
        "LLaVA-OneVision",
        "the whole image, and tiles of 384 x 384 whose tokens are packed; no tiles beside other images",
        {"image_size": 384, "patch_size": 14},
        {"size": {"height": 384, "width": 384}, "image_grid_pinpoints": GRIDS},
        {"image_grid_pinpoints": GRIDS, "vision_aspect_ratio": "anyres_max_9"},
    ),
    "lfm2_vl": Published(
        "LFM2-VL",
        "up to 256 tokens, or tiles of 512 x 512 and a thumbnail",
        {"num_patches": 256, "patch_size": 16},
        {
            "encoder_patch_size": 16,
            "tile_size": 512,
            "min_image_tokens": 64,
            "max_image_tokens": 256,
            "max_tiles": 10,
        },
    ),
    "mistral3": Published(
        "Mistral Small 3.1 and 3.2, Ministral 3",
        "up to 1540 pixels a side, rounded up to tokens",
        {"patch_size": 14},
        {"size": {"longest_edge": 1540}},
    ),
    "paddleocr_vl": Published(
        "PaddleOCR-VL",
        BOUNDED,
        {"patch_size": 14, "image_size": 384},
        {"patch_size": 14, "min_pixels": 147384, "max_pixels": 2822400},
    ),
    "pixtral": Published(
        "Pixtral, of the class `llava`",
        "up to 1024 pixels a side, rounded up to tokens",
        {"patch_size": 16},
        {"size": {"longest_edge": 1024}},
    ),
    "qwen2_5_vl": QWEN2._replace(models="Qwen2.5-VL", vision={"patch_size": 14, "window_size": 112}),
    "qwen2_vl": QWEN2._replace(models="Qwen2-VL"),
    "qwen3_5": QWEN3._replace(models="Qwen3.5, dense"),
    "qwen3_5_moe": QWEN3._replace(models="Qwen3.5 with experts"),
    "qwen3_vl": QWEN3._replace(models="Qwen3-VL, dense"),
    "qwen3_vl_moe": QWEN3._replace(models="Qwen3-VL with experts"),
    "smolvlm": Published(
        "SmolVLM, SmolVLM2 and `idefics3`",
        "tiles of the tower's size, and the whole image",
        {"image_size": 512, "patch_size": 16},
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
    ),
}


def block() -> str:
    """The table."""
    titles = " | ".join(f"tokens, `{detail}`" for detail in DETAILS)
    lines = [
        f"| | Models | Sides of an image | Placeholder | {titles} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family in sorted(VISION_FAMILIES):
        stated = PUBLISHED[family]
        with tempfile.TemporaryDirectory() as name:
            options = {"vision": stated.vision, "preprocessor": stated.preprocessor, "fields": stated.fields}
            processor = ImageProcessor.of(make_vision_description(Path(name), family, **options))
        assert processor is not None
        counts = [processor.tokens_of_size(WIDTH, HEIGHT, "low"), processor.tokens_of_size(WIDTH, HEIGHT)]
        counts.append(processor.tokens_of_size(WIDTH, HEIGHT, "high"))
        placeholder = processor.placeholder.replace("|", "\\|")
        cells = [f"`{family}`", stated.models, stated.sizes, f"`{placeholder}`", *map(str, counts)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text()
    assert BLOCK.search(page), f"{PAGE} has no place for the table"
    PAGE.write_text(BLOCK.sub(lambda _: BEGIN + block() + END, page))
