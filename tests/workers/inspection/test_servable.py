"""A checkpoint is judged without loading it."""

import os
from pathlib import Path

import msgspec
import pytest

from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from tests.checkpoints import make_checkpoint
from workers.inspection.servable import Servable
from workers.process.spec import WorkerSpec


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    path = make_checkpoint(tmp_path / "model")
    return worker_spec(Settings(backend="mlx"), ChosenModel("model", path))


def test_a_checkpoint_is_described(spec: WorkerSpec) -> None:
    found = Servable.of(spec)
    assert (found.problem, found.backend, found.family, found.text) == ("", "mlx", "llama", True)
    assert found.context > 0
    (Path(spec.model_path) / "tokenizer.json").unlink()
    assert not Servable.of(spec).text


def test_what_cannot_be_served_has_a_reason(spec: WorkerSpec, tmp_path: Path) -> None:
    long = msgspec.structs.replace(spec, context=1 << 20)
    assert "max_position_embeddings" in Servable.of(long).problem
    missing = msgspec.structs.replace(spec, model_path=str(tmp_path / "nowhere"))
    assert "there is no such file" in Servable.of(missing).problem
    os.truncate(Path(spec.model_path) / "model.safetensors", 9)
    assert "is not a safetensors file" in Servable.of(spec).problem
