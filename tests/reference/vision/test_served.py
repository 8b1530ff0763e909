"""Images over HTTP: the `openai` client, the gateway and workers with a tiny checkpoint of each family, compared with
`generate` of transformers in float32."""

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image as Pillow

from gateway.fleet.launch import WorkerLaunch
from tests.gateway.harness.real import Real, command_of, gather, real_gateway
from tests.gateway.images.files import data_url
from tests.reference.vision.processors import expansion, process
from tests.reference.vision.test_vision import as_file, load_model, loaded, picture
from tests.vision_checkpoints import VISION_FAMILIES, make_vision_checkpoint
from tests.vision_checkpoints.projector_files import make_projected
from workers.faults.plan import Fault
from workers.process.spec import Backend, WorkerSpec

pytestmark = [pytest.mark.anyio, pytest.mark.reference]

NEW = 20
"""Tokens of an answer."""
SIZE = (60, 44)
BEFORE, AFTER = "Look at this ", " and name it."
DEFAULT = ("iree", "qwen3_vl")
IMPORTS = {"iree": "iree.runtime", "mlx": "mlx.core"}
RECURRENT = ("lfm2_vl", "qwen3_5", "qwen3_5_moe")
CASES = [
    pytest.param(backend, family, id=f"{backend}-{family}", marks=() if (backend, family) == DEFAULT else further)
    for further in [pytest.mark.exhaustive]
    for backend in ("iree", "mlx")
    for family in sorted(VISION_FAMILIES)
]
BACKENDS = [pytest.param("iree", id="iree"), pytest.param("mlx", id="mlx", marks=pytest.mark.exhaustive)]


class VisionReference:
    """A tiny checkpoint, and the answers of transformers to one image between two texts."""

    def __init__(self, folder: Path, family: str) -> None:
        self._family = family
        self.path = make_vision_checkpoint(folder, family)

    @cached_property
    def _model(self) -> Any:
        return load_model(self._family, self.path)

    def answer(self, image: Pillow.Image, after: str = AFTER) -> list[int]:
        """The `NEW` tokens of transformers."""
        import torch
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.path)
        content = [{"type": "text", "text": BEFORE}, {"type": "image"}, {"type": "text", "text": after}]
        messages = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        placeholder, replacement = expansion(self._family, self.path, image, tokenizer)
        assert text.count(placeholder) == 1
        ids = torch.tensor([tokenizer(text.replace(placeholder, replacement), add_special_tokens=False)["input_ids"]])
        inputs, _ = process(self._family, self.path, image)
        inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        fields = json.loads((self.path / "config.json").read_text())
        image_token = fields.get("image_token_id", fields.get("image_token_index"))
        if self._family.startswith(("gemma", "glm", "paddle", "qwen")):
            kinds = "token_type_ids" if self._family == "gemma3" else "mm_token_type_ids"
            inputs[kinds] = (ids == image_token).int()
        made = self._model.generate(**inputs, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
        tokens: list[int] = made[0, ids.shape[1] :].tolist()
        return tokens


Serve = Callable[..., AbstractAsyncContextManager[Real]]


@pytest.fixture
def serve(cache_dir: Path) -> Serve:
    """A gateway with one worker, in float32; `faults` are the worker's."""

    def run(path: Path, backend: Backend, faults: Sequence[Fault] = ()) -> AbstractAsyncContextManager[Real]:
        pytest.importorskip(IMPORTS[backend])
        spec = WorkerSpec(
            name="w0",
            model_name="tiny",
            model_path=str(path),
            backend=backend,
            device={"iree": "local-task", "mlx": "cpu"}[backend],
            dtype="float32",
            max_batch_size=2,
            context=512,
            cache_dir=str(cache_dir),
            log_level="warning",
            faults=tuple(faults),
        )
        return real_gateway(WorkerLaunch("w0", "tiny", command_of(spec)))

    return run


def asked_of(image: Pillow.Image, after: str = AFTER) -> dict[str, Any]:
    """The fields of a request about an image."""
    content = [
        {"type": "text", "text": BEFORE},
        {"type": "image_url", "image_url": {"url": data_url(as_file(image).data)}},
        {"type": "text", "text": after},
    ]
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": NEW,
        "temperature": 0,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
    }


def client_of(real: Real) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{real.port}/v1", api_key="none", max_retries=0)


async def ask(real: Real, image: Pillow.Image, after: str = AFTER) -> tuple[list[int], int, int]:
    """The tokens of an answer, and those of its prompt, in all and cached; each from a client of its own."""
    async with client_of(real) as client:
        answer = await client.chat.completions.create(**asked_of(image, after))
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    tokens = (answer.choices[0].model_extra or {})["token_ids"]
    return tokens, usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


async def images(real: Real) -> tuple[int, int]:
    """Images that were encoded, and those found in the cache of rows."""
    found = {}
    for line in (await real.client.get("/metrics")).text.splitlines():
        name, _, value = line.partition(" ")
        found[name.partition("{")[0]] = value
    return int(float(found["baton_images_encoded_total"])), int(float(found["baton_image_cache_hits_total"]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["iree", "mlx"])
async def test_gguf_files_are_served_as_their_safetensors(serve: Serve, tmp_path: Path, backend: Backend) -> None:
    path = make_vision_checkpoint(tmp_path / "checkpoint", "qwen3_vl")
    bounds = {"clip.vision.image_min_pixels": 256, "clip.vision.image_max_pixels": 8192}
    answers = []
    for model in (path, make_projected(path, tmp_path, metadata=bounds)):
        async with serve(model, backend) as real:
            answers.append(await ask(real, picture(*SIZE)))
    assert answers[1] == answers[0]


@pytest.mark.parametrize(("backend", "family"), CASES)
async def test_answers_are_those_of_transformers(serve: Serve, tmp_path: Path, backend: Backend, family: str) -> None:
    """Two clients at once with the same texts and different images, then the same image again, and behind it another
    text: no client gets the KV of another image, and each image is encoded once."""
    reference = VisionReference(tmp_path, family)
    one, two = (picture(*SIZE, seed) for seed in range(2))
    other = " Which colours are there?"
    wanted = [reference.answer(one), reference.answer(two), reference.answer(one, other)]
    tiles = len(reference_parts(reference.path, one))
    async with serve(reference.path, backend) as real:
        (first, prompt, _), (second, _, shared) = await gather(lambda: ask(real, one), lambda: ask(real, two))
        assert [first, second] == wanted[:2]
        assert shared < prompt / 2, "at most the text before the image"
        assert await images(real) == (2 * tiles, 0)
        warm, _, cached = await ask(real, one)
        assert warm == first
        # The prefix of a recurrent model is taken up at a snapshot, of which so short a prompt has none.
        assert cached > prompt / 2 or family in RECURRENT
        assert (await ask(real, one, other))[0] == wanted[2]
        encoded, _ = await images(real)
        assert encoded == 2 * tiles
    if family == DEFAULT[1]:  # elsewhere the random weights may ask for the same token again and again
        assert first != second != wanted[2]


def reference_parts(path: Path, image: Pillow.Image) -> Sequence[Any]:
    """The tiles of an image, which the tower computes one by one."""
    return loaded(path).prepare(as_file(image)).parts


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_stream_outlives_kills_in_the_image_and_in_the_answer(
    serve: Serve, tmp_path: Path, backend: Backend
) -> None:
    """The first worker is killed in its third call, which is a part of the image: before it are at most the text and
    a first part. The second one is slow, and is killed in the middle of the answer."""
    reference, image = VisionReference(tmp_path, "qwen3_vl"), picture(*SIZE)
    faults = [Fault("kill", call=3, incarnation=1), Fault("slow", calls=0, seconds=0.02, incarnation=2)]
    before: list[int] = []
    got: list[int] = []

    async def read(real: Real) -> None:
        async with client_of(real) as client:
            async for chunk in await client.chat.completions.create(**asked_of(image), stream=True):
                for choice in chunk.choices:
                    got.extend((choice.model_extra or {}).get("token_ids") or ())

    async with serve(reference.path, backend, faults) as real:

        def answering() -> bool:
            if real.status().incarnation == 1:
                before[:] = got
            return any(len(each.tokens) > NEW // 4 for handle in real.router.pool for each in handle.live.values())

        def kill() -> None:
            pid = real.status().pid
            assert real.status().incarnation == 2
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        await gather(lambda: read(real), lambda: real.until(answering, kill))
        assert before == []
        assert got == reference.answer(image)
        assert real.status().incarnation == 3
        assert (await images(real))[0] == 2, "by the second worker and the third"
