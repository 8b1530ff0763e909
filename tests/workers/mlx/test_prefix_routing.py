"""Routing by prefix over MLX runners: their workers report what they retain, and the router uses it."""

import json
from pathlib import Path

import pytest

from gateway.openai.decoding import RequestDecoder
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.checkpoints import make_checkpoint
from tests.gateway.harness.engines import EngineWorker
from tests.workers.mlx.conftest import Load

pytestmark = pytest.mark.anyio
SHARED = [*range(3, 163)]


class Mlx:
    """A router over workers that compute with MLX."""

    def __init__(self, load: Load, path: Path, *names: str) -> None:
        settings = GatewaySettings()
        self.router = Router(settings)
        self.decoder = RequestDecoder(settings)
        self.workers = {name: EngineWorker(name, slots=2, runner=lambda: load(path, slots=2)) for name in names}
        for worker in self.workers.values():
            worker.join(self.router)

    def run(self, prompt: list[int]) -> RequestGroup:
        body = {"model": "tiny", "prompt": prompt, "stream": True, "max_tokens": 1}
        group = self.router.admission.open(self.decoder.completion(json.dumps(body).encode()).request, "r")
        while not group.ended:
            for worker in self.workers.values():
                worker.step()
        assert group.failure is None
        return group


async def test_a_prefix_goes_to_the_mlx_worker_that_reported_it(load: Load, tmp_path: Path) -> None:
    mlx = Mlx(load, make_checkpoint(tmp_path / "model"), "a", "b")
    cached = []
    for prompt in ([*SHARED, 7], [*range(200, 240)], [*SHARED, 8], [*SHARED, 9, 10]):
        group = mlx.run(prompt)
        usage = group.sequences[0].usage
        assert usage is not None
        cached.append((group.worker, usage.cached_tokens))
    assert cached == [("a", 0), ("b", 0), ("a", len(SHARED)), ("a", len(SHARED))]
    digests = {handle.name: handle.prefix_digests() for handle in mlx.router.pool}
    assert digests["a"] > digests["b"] > 0
    mlx.workers["a"].die()
    mlx.workers["a"].come_back()
    assert mlx.run([*SHARED, 11]).worker == "a", "which holds least now"
