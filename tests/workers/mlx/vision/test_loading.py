"""Loading of vision towers on MLX: from checkpoints in MLX's layout, quantized or not, and not at all."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import write_safetensors
from tests.vision_checkpoints import make_vision_checkpoint
from tests.vision_tower import NumpyTower
from tests.workers.mlx.conftest import Load
from tests.workers.mlx.vision.random_towers import random_image
from tests.workers.mlx.vision.test_encoder import finished
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk, Runner
from workers.errors import LoadRefused
from workers.vision.tower import find_tower

pytestmark = pytest.mark.reference
PREFIXES = {
    "model.visual.": "vision_tower.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
GROUP, BITS = 32, 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("model"), "qwen3_vl", fields={"tie_word_embeddings": False})


def as_mlx_writes_it(source: Path, target: Path, *, quantized: bool) -> Path:
    """Write a checkpoint as mlx-vlm converts it: other prefixes, channels last, and matrices in groups."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        old, new = next((old, new) for old, new in PREFIXES.items() if name.startswith(old))
        own = new + name.removeprefix(old)
        if tensor.ndim == 5:
            tensors[own] = np.moveaxis(tensor, 1, -1)
        elif quantized and tensor.ndim == 2 and tensor.shape[1] % GROUP == 0 and not own.endswith("pos_embed.weight"):
            module = own.removesuffix(".weight")
            parts = mx.quantize(mx.array(tensor), group_size=GROUP, bits=BITS)
            tensors |= {
                f"{module}.{part}": np.array(each)
                for part, each in zip(("weight", "scales", "biases"), parts, strict=True)
            }
        else:
            tensors[own] = tensor
    if quantized:
        config["quantization"] = {"group_size": GROUP, "bits": BITS}
    (target / "config.json").write_text(json.dumps(config))
    write_safetensors(target / "model.safetensors", tensors)
    return target


def rows_of(runner: Runner, path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    tower = find_tower(path)
    assert tower is not None
    assert runner.vision is not None
    return finished(runner.vision.begin(random_image(tower.config, (2, 3))))  # type: ignore[arg-type]


def test_a_checkpoint_as_mlx_writes_it(checkpoint: Path, tmp_path: Path, load: Load) -> None:
    expected = rows_of(load(checkpoint), checkpoint)
    plain = as_mlx_writes_it(checkpoint, tmp_path / "plain", quantized=False)
    np.testing.assert_array_equal(rows_of(load(plain), plain), expected)
    quantized = as_mlx_writes_it(checkpoint, tmp_path / "quantized", quantized=True)
    tower, runner = find_tower(quantized), load(quantized)
    assert tower is not None
    rows = rows_of(runner, quantized)
    np.testing.assert_allclose(
        rows, NumpyTower(tower.config, tower.weights()).rows(random_image(tower.config, (2, 3))), atol=1e-4
    )
    assert 0 < np.abs(rows - expected).max() < 0.1
    assert runner.capabilities.quantization == "int8"


def test_the_tower_is_left_out_on_demand(checkpoint: Path, load: Load) -> None:
    """It costs no memory then, and images are refused."""
    sees, blind = load(checkpoint, dtype="bfloat16"), load(checkpoint, dtype="bfloat16", vision=False)
    assert blind.vision is None
    assert blind.capabilities.embedding_width == 0
    assert sees.capabilities.embedding_width == 64 * 3
    tower = find_tower(checkpoint)
    assert tower is not None
    weights = tower.weights()
    size = 2 * sum(weights[name].size for name in weights if name != "positions.weight")
    assert sees.memory() == {**blind.memory(), "vision_weights": size, "vision_buffers": 0}
    with pytest.raises(ValueError, match="tokens: give at least one, none outside"):
        blind.logits(Chunk(0, (5, -9), 0, 0))


def test_embeddings_of_requests_need_a_model_without_its_tower(checkpoint: Path, load: Load) -> None:
    with pytest.raises(LoadRefused, match=r"embeddings: .*--no-vision"):
        load(checkpoint, embeddings=True)
    assert load(checkpoint, embeddings=True, vision=False).capabilities.embedding_width == 64


def test_a_tower_that_lacks_a_tensor_is_refused(checkpoint: Path, tmp_path: Path, load: Load) -> None:
    damaged = as_mlx_writes_it(checkpoint, tmp_path / "damaged", quantized=False)
    tensors = load_file(damaged / "model.safetensors")
    write_safetensors(
        damaged / "model.safetensors", {name: each for name, each in tensors.items() if "blocks.1.norm2" not in name}
    )
    with pytest.raises(CheckpointError, match=r"norm2\.weight: the tensor is missing, which images need"):
        load(damaged)
    load(damaged, vision=False)
