"""Pixels to logits on MLX against transformers, by the tiny checkpoint of each family."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image as Picture
from tokenizers import Tokenizer

from protocol.request import Image, Sampling
from tests.reference.vision.processors import PIXTRAL, process, with_masks
from tests.vision_checkpoints import VISION_FAMILIES, make_vision_checkpoint
from tests.vision_checkpoints.projector_files import KINDS, PUBLISHED, make_projected
from tests.workers.mlx.conftest import Load
from workers.engine.embeddings.prompt_embeddings import PromptEmbeddings
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.sampling.sample_spec import SampleSpec
from workers.vision.mrope import axes_of
from workers.vision.patches import ImagePatches
from workers.vision.processor import ImageProcessor

pytestmark = pytest.mark.reference
ANSWER = 6
TEXT = (40, 41, 52, 60)
ERROR = 5e-5
"""The largest difference of a logit in float32, as a part of the largest logit."""
ERRORS = {"gemma4_unified": 2e-4}
"""The same of families that norm the numbers of a patch: where these are almost even, roundings become larger."""
SIZES = ((112, 80), (48, 64))
"""Width and height of two images in one prompt."""
GEMMA4_E = {
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 3,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "use_bidirectional_attention": None,
    "pad_token_id": 7,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in sorted(VISION_FAMILIES)} | {
    "gemma4_e2b": ("gemma4", {"text": GEMMA4_E, "vision": {"use_clipped_linears": True, "standardize": False}})
}


def pictures() -> list[Picture.Image]:
    generator = np.random.default_rng(4)
    small = [Picture.fromarray(generator.integers(0, 255, (6, 8, 3), dtype=np.uint8)) for _ in SIZES]
    return [each.resize(size, Picture.Resampling.BICUBIC) for each, size in zip(small, SIZES, strict=True)]


def files() -> list[Image]:
    made = []
    for picture in pictures():
        file = io.BytesIO()
        picture.save(file, "PNG")
        made.append(Image("png", *picture.size, file.getvalue()))
    return made


class Reference:
    """The model in transformers."""

    def __init__(self, family: str, path: Path, tokens: Sequence[int], image_token: int) -> None:
        import torch
        import transformers

        self._torch, self._family, self._length = torch, family, len(tokens)
        kind = getattr(transformers, f"{VISION_FAMILIES[family].name}ForConditionalGeneration")
        self._model = kind.from_pretrained(path, attn_implementation="eager").eval()
        each = [process(family, path, picture)[0] for picture in pictures()]
        tiles = 1 if family == "smolvlm" else 0
        if family in (*PIXTRAL, "llava_onevision"):  # which pad the images of a batch to equal sides
            each = [process(family, path, pictures())[0]]
        self._inputs = {name: torch.cat([inputs[name] for inputs in each], dim=tiles) for name in each[0]}
        ids = torch.tensor([tokens])
        self._inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if family.startswith(("gemma", "glm", "paddle", "qwen")):
            kinds = "token_type_ids" if family == "gemma3" else "mm_token_type_ids"
            self._inputs[kinds] = (ids == image_token).int()

    def logits(self) -> NDArray[np.float32]:
        with self._torch.no_grad():
            inputs = with_masks(self._family, self._model, self._inputs)
            logits: NDArray[np.float32] = self._model(**inputs).logits[0].numpy()
        return logits

    def greedy(self) -> list[int]:
        made = self._model.generate(**self._inputs, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None)
        answer: list[int] = made[0, self._length :].tolist()
        return answer


def runs(tokens: list[int], image_token: int, parts: list[ImagePatches]) -> list[tuple[int, ImagePatches]]:
    """The place of each part: runs of the image's token, of as many rows as the parts have."""
    places, at = [], 0
    for part in parts:
        at = tokens.index(image_token, at)
        places.append((at, part))
        assert [tokens[at + offset] for offset in part.offsets] == [image_token] * part.count
        at += part.offsets[-1] + 1
    assert image_token not in tokens[at:]
    return places


def prompt_of(runner: Runner, path: Path, processor: ImageProcessor) -> tuple[list[int], Chunk, int]:
    """The tokens of a prompt with two images, the prompt as one chunk, and the position of the first token behind
    it."""
    assert runner.vision is not None
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens, parts = list(TEXT), list[ImagePatches]()
    for image in files():
        prepared = processor.prepare(image)
        tokens += [*tokenizer.encode(prepared.text, add_special_tokens=False).ids, *TEXT]
        parts += prepared.parts
    places, rows, ends = runs(tokens, processor.image_token, parts), [], list(range(1, len(tokens) + 1))
    for at, part in places:
        encoding = runner.vision.begin(part)
        while not encoding.advance():
            pass
        rows.append(encoding.rows())
        encoding.close()
        ends[at : at + part.count] = [at + part.count] * part.count
    embeddings = PromptEmbeddings(np.concatenate(rows))
    numbers, ids = list(tokens), iter(embeddings.ids)
    for at, part in places:
        for offset in part.offsets:
            numbers[at + offset] = next(ids)
    axes, position = axes_of(tokens, places) if processor.config.mrope else (None, len(tokens))
    bidirectional = runner.capabilities.bidirectional_images
    chunk = Chunk(0, tuple(numbers), 0, 0, embeddings, axes=axes, ends=tuple(ends) if bidirectional else None)
    return tokens, chunk, position


def answer_of(runner: Runner, chunk: Chunk, position: int) -> list[int]:
    """Greedy tokens after a prompt."""
    length = len(chunk.tokens)
    spec = SampleSpec(Sampling(), length)
    (token,) = runner.prefill([chunk], [spec])
    tokens = [token]
    for step in range(ANSWER - 1):
        assert token is not None
        (token,) = runner.decode([DecodeRow(chunk.slot, token, length + step, position + step, spec)])
        tokens.append(token)
    return [-1 if each is None else each for each in tokens]


EACH_TIME = ("gemma3", "gemma4_e2b", "mistral3", "qwen3_5", "qwen3_vl")
"""Between them they have all that differs in a language model; the towers of others are compared elsewhere."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in EACH_TIME else pytest.mark.exhaustive) for case in sorted(CASES)],
)
def test_logits_and_tokens_are_those_of_transformers(case: str, tmp_path: Path, load: Load) -> None:
    family, changes = CASES[case]
    path = make_vision_checkpoint(tmp_path, family, **changes)
    runner, processor = load(path, context=512), ImageProcessor.of(path)
    assert processor is not None
    tokens, chunk, position = prompt_of(runner, path, processor)
    reference = Reference(family, path, tokens, processor.image_token)
    logits, expected = runner.logits(chunk), reference.logits()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=ERRORS.get(case, ERROR) * float(np.abs(expected).max()))
    answer = answer_of(runner, structs.replace(chunk, slot=1), position)
    assert answer == reference.greedy()
    image = min(at for at, token in enumerate(chunk.tokens) if token < 0)
    parts = [chunk.part(0, image), chunk.part(image, len(chunk.tokens) - image)]
    split = [runner.logits(structs.replace(part, slot=2)) for part in parts]
    np.testing.assert_array_equal(np.concatenate(split), logits)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name == "qwen3_vl" else pytest.mark.exhaustive) for name in sorted(KINDS)],
)
def test_logits_of_gguf_files_are_those_of_safetensors(family: str, tmp_path: Path, load: Load) -> None:
    small = family.startswith("qwen3")  # whose published images are larger than the context
    path = make_vision_checkpoint(tmp_path / "checkpoint", family, **({} if small else PUBLISHED.get(family, {})))
    bounds = {"clip.vision.image_min_pixels": 256, "clip.vision.image_max_pixels": 8192} if small else {}
    found = []
    for model in (path, make_projected(path, tmp_path, metadata=bounds)):
        runner, processor = load(model, context=1024), ImageProcessor.of(model)
        assert processor is not None
        _, chunk, position = prompt_of(runner, path, processor)
        found.append((runner.logits(chunk), answer_of(runner, structs.replace(chunk, slot=1), position)))
    (expected, tokens), (logits, same) = found
    # Norms of Gemma 3 and Qwen3.5 are rounded once more: files have them with the one that is added to them.
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    assert same == tokens
    if family not in ("gemma3", "qwen3_5"):
        np.testing.assert_array_equal(logits, expected)
