"""Matrices stored transposed: bit-identical to mlx's own on a CPU under Linux, and only there."""

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.mlx.conftest import Load
from workers.mlx.transposed import TransposedEmbedding, TransposedLinear


@pytest.fixture(autouse=True)
def on_the_cpu() -> Any:
    with mx.stream(mx.cpu):
        yield


exact = pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate's sums depend on the layout")


@exact
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 33])
def test_outputs_are_bit_identical(rows: int, bias: bool) -> None:
    linear, x = nn.Linear(96, 200, bias=bias), mx.random.normal((rows, 1, 96), key=mx.random.key(rows))
    assert mx.array_equal(TransposedLinear(linear)(x), linear(x))


@exact
def test_an_embedding_gives_the_same_rows_and_logits() -> None:
    embedding, tokens = nn.Embedding(70, 32), mx.array([[3], [69], [3], [0]])
    transposed = TransposedEmbedding(embedding)
    assert mx.array_equal(transposed(tokens), embedding(tokens))
    assert mx.array_equal(transposed.as_linear(embedding(tokens)), embedding.as_linear(embedding(tokens)))


@pytest.mark.parametrize(
    ("platform", "dtype", "transposed"),
    [("linux", "float32", True), ("linux", "bfloat16", False), ("darwin", "float32", False)],
)
@pytest.mark.parametrize("tied", [True, False])
def test_only_float32_under_linux_is_transposed(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, platform: str, dtype: str, transposed: bool, tied: bool
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    model: Any = load(
        make_checkpoint(tmp_path, "gemma3_text" if tied else "llama", tied=tied), dtype=dtype
    )._forward.model
    modules = dict(model.named_modules())
    assert isinstance(modules["model.layers.0.mlp.down_proj"], TransposedLinear) is transposed
    embeddings = [module for module in modules.values() if isinstance(module, TransposedEmbedding)]
    assert len(embeddings) == (transposed and tied)
