"""Prompts with images on IREE against transformers: pixels, rows of embeddings, logits and tokens."""

from typing import Any

import numpy as np
import pytest

from tests.reference.test_vision import as_file, load_model, picture
from tests.reference.vision_processors import process
from tests.vision_checkpoints import VISION_FAMILIES, make_vision_checkpoint
from tests.workers.iree.conftest import Load
from tests.workers.iree.vision.prompted import Prompted

pytestmark = pytest.mark.reference
CONTEXT = 512
ERROR = 1e-4
"""The largest error of a logit, beside the largest logit."""


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("family", sorted(VISION_FAMILIES))
def test_logits_and_tokens_are_those_of_transformers(
    torch: Any, family: str, load: Load, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from workers.vision.processor import ImageProcessor

    path = make_vision_checkpoint(tmp_path_factory.mktemp(family), family)
    own = ImageProcessor.of(path)
    assert own is not None
    image = picture(60, 44)
    prepared = own.prepare(as_file(image))
    ids = [5, 6, 7, 8, 9]
    for part in prepared.parts:
        ids += [own.image_token] * part.count + [10, 11]
    ids += [12, 13, 14]
    inputs = {**process(family, path, image)[0], "input_ids": torch.tensor([ids])}
    kinds = torch.tensor([[int(token == own.image_token) for token in ids]])
    if family == "gemma3":
        inputs["token_type_ids"] = kinds
    elif family.startswith(("qwen", "gemma")):
        inputs["mm_token_type_ids"] = kinds
    model = load_model(family, path)
    with torch.no_grad():
        expected = model(**inputs).logits[0, -1].numpy()
        answer = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, len(ids) :].tolist()

    runner = load(path, context=CONTEXT, slots=2)
    try:
        prompt = Prompted.of(runner, ids, own.image_token, prepared.parts)
        found = prompt.last_logits(runner)
        print(family, "error", np.abs(found - expected).max() / np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=ERROR * np.abs(expected).max())
        runner.reset(0)
        token = prompt.prefill(runner, [])
        assert prompt.answer(runner, token, len(answer)) == answer
    finally:
        runner.close()
