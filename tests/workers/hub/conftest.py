"""A hub with a small model, and downloads from it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.hub_id import HubId
from tests.checkpoints import make_checkpoint
from tests.workers.hub.hub_server import HubServer
from workers.hub.download import Download

TINY = HubId("org/tiny")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """It has the model `org/tiny`, and files beside it that Baton does not read."""
    server = HubServer()
    server.add(TINY.repo, make_checkpoint(tmp_path / "published"))
    server.repos[TINY.repo] |= {
        "consolidated.safetensors": b"the same for another program",
        "onnx/model.onnx": b"and another one",
        "pytorch_model.bin": b"and another one",
    }
    with server.serve():
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tiny(hub: HubServer, cache: Path) -> Download:
    return Download(TINY, hub.url, cache)
