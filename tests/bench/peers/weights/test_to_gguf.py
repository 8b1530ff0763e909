"""GGUF files: read with llama.cpp's own reader, they are the checkpoint again."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from bench.peers.weights.to_gguf import Kind, convert
from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights

ROUNDING = {"bf16": 0.0, "q8_0": 1 / 127, "q4_0": 1 / 8}
"""The most that a value may be off by, in parts of the largest of its 32 neighbours."""


def read(file: Path) -> dict[str, np.ndarray]:
    tensors = gguf.GGUFReader(file).tensors
    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors}


def neighbours(matrix: np.ndarray) -> np.ndarray:
    """Llama's query and key rows as llama.cpp wants them: row 2 i + h of a head is its row i + h * half."""
    heads = matrix.reshape(-1, 16, matrix.shape[-1])
    order = [i + half * 8 for i in range(8) for half in (0, 1)]
    return heads[:, order].reshape(matrix.shape)


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_weights_come_back(family: str, kind: Kind, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", family, dtype="bfloat16", tied=family == "qwen2")
    convert(path, tmp_path / "model.gguf", kind)
    found = read(tmp_path / "model.gguf")
    expected = {name: tensor.astype(np.float32) for name, tensor in open_weights(path).items()}
    assert len(found) == len(expected)
    for name, source in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        wanted = expected[source]
        if family == "llama" and "attn_k" in name:
            wanted = neighbours(wanted)
        limit = 0.0 if wanted.ndim == 1 else ROUNDING[kind]
        scale = np.abs(wanted.reshape(-1, 32)).max(-1, keepdims=True)
        assert (np.abs((found[name] - wanted).reshape(-1, 32)) <= limit * scale).all(), name
    assert (found["blk.1.attn_q.weight"].shape) == (64, 64)
    assert ("output.weight" in found) == (family == "llama")
    assert ("blk.0.attn_q.bias" in found) == (family == "qwen2")


def test_the_shape_and_the_tokens_are_in_the_file(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen2", vocab=600)
    convert(path, tmp_path / "model.gguf", "f32")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    config = ModelConfig.from_dir(path)
    fields = {
        "qwen2.block_count": config.layers,
        "qwen2.attention.head_count": config.heads,
        "qwen2.attention.head_count_kv": config.kv_heads,
        "qwen2.rope.dimension_count": config.head_dim,
        "qwen2.rope.freq_base": config.ropes[0].theta,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for name, value in fields.items():
        assert reader.fields[name].contents() == pytest.approx(value), name
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    assert tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert types[:4] == [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL]
    assert len(tokens) == len(set(tokens)) == len(types) == 600


def test_what_is_not_converted_is_refused_by_name(tmp_path: Path) -> None:
    scaled = make_checkpoint(tmp_path / "scaled", rope_scaling=LLAMA3_SCALING)
    with pytest.raises(CheckpointError, match="rope_scaling"):
        convert(scaled, tmp_path / "model.gguf")
    biased = make_checkpoint(tmp_path / "biased", attention_bias=True)
    with pytest.raises(CheckpointError, match="attention_bias"):
        convert(biased, tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="olmo2 is not converted"):
        convert(make_checkpoint(tmp_path / "other", "olmo2"), tmp_path / "model.gguf")
    assert not list(tmp_path.glob("*.gguf*"))
