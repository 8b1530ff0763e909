"""Real workers that are killed while they compute the tiles of an image: the answer is that of an undisturbed run."""

from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.launch import WorkerLaunch
from tests.gateway.harness.real import command_of, real_gateway
from tests.gateway.images.files import data_url, picture
from tests.vision_checkpoints import make_vision_checkpoint
from workers.faults.plan import Fault
from workers.process.spec import Backend, WorkerSpec

pytestmark = [pytest.mark.anyio, pytest.mark.reference, pytest.mark.exhaustive]
TILE = 3
"""The call of the fault: on MLX a tile of this size is one part of the work, on IREE a block of a layer."""


def about(image: bytes, salt: str) -> dict[str, Any]:
    content = [
        {"type": "image_url", "image_url": {"url": data_url(image)}},
        {"type": "text", "text": "What is it?"},
    ]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0}
    return body | {"return_token_ids": True, "cache_salt": salt}


@pytest.mark.parametrize("backend", ["iree", "mlx"])
async def test_an_answer_outlives_the_death_of_its_worker_within_an_image(backend: Backend, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip({"iree": "iree.runtime", "mlx": "mlx.core"}[backend])
    path = make_vision_checkpoint(tmp_path, "internvl", text={"num_hidden_layers": 2})
    spec = WorkerSpec(
        name="w0",
        model_name="tiny",
        model_path=str(path),
        backend=backend,
        device={"iree": "local-task", "mlx": "cpu"}[backend],
        context=512,
        max_batch_size=2,
        log_level="warning",
        faults=(Fault("kill", call=TILE, incarnation=1),),
    )
    image = picture("png", 60, 44)
    command = command_of(spec)
    async with real_gateway(WorkerLaunch("w0", "tiny", command), worker_wait_s=100) as real:
        answers = []
        for salt in ("killed", "undisturbed"):
            response = await real.client.post("/v1/chat/completions", json=about(image, salt), timeout=100)
            assert response.status_code == 200, response.text
            answers.append(response.json()["choices"][0]["token_ids"])
        assert real.status().incarnation == 2, "the fault was within the first answer"
        assert answers[0] == answers[1]
        assert len(answers[0]) == 6
