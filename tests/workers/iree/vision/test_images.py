"""Prompts with images on IREE against transformers: pixels, rows of embeddings, logits and tokens."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.request import Image
from tests.workers.iree.conftest import Load
from tests.workers.iree.vision.prompted import Prompted

pytestmark = pytest.mark.reference
FAMILIES = ("gemma3", "gemma4", "lfm2_vl", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_vl", "smolvlm")
CONTEXT = 512
ERROR = 1e-4
"""The largest error of a logit, beside the largest logit."""


def picture(width: int, height: int, seed: int = 0) -> Any:
    import PIL.Image

    rng = np.random.default_rng(seed)
    small = rng.integers(0, 255, (height // 4, width // 4, 3), np.uint8)
    return PIL.Image.fromarray(small).resize((width, height), PIL.Image.Resampling.BICUBIC)


def file_of(image: Any) -> Image:
    out = io.BytesIO()
    image.save(out, "PNG")
    return Image(out.getvalue())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens_are_those_of_transformers(
    family: str, load: Load, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import torch
    import transformers

    from tests.vision_checkpoints import make_vision_checkpoint
    from workers.vision.processor import ImageProcessor

    path = make_vision_checkpoint(tmp_path_factory.mktemp(family), family)
    own = ImageProcessor.of(path)
    assert own is not None
    images = [picture(36, 24), picture(24, 40, seed=1)]
    content = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}, {"type": "text", "text": "why"}]
    processor = transformers.AutoProcessor.from_pretrained(path)
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=text, images=images, return_tensors="pt")
    ids = inputs["input_ids"][0].tolist()
    model = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(**inputs).logits[0, -1].numpy()
        answer = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, len(ids) :].tolist()

    runner = load(path, context=CONTEXT, slots=2)
    try:
        parts = [part for image in images for part in own.prepare(file_of(image)).parts]
        prompt = Prompted.of(runner, ids, own.image_token, parts)
        found = prompt.last_logits(runner)
        print(family, "error", np.abs(found - expected).max() / np.abs(expected).max())
        np.testing.assert_allclose(found, expected, atol=ERROR * np.abs(expected).max())
        runner.reset(0)
        token = prompt.prefill(runner, [])
        assert prompt.answer(runner, token, len(answer)) == answer
    finally:
        runner.close()
