"""Checkpoints of Qwen3-VL's architecture with random weights in bfloat16, made without torch, and images for them."""

import base64
import io
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.vision_checkpoints import make_vision_description
from workers.checkpoints.checkpoint import open_weights

Tensors = dict[str, NDArray[Any]]
PATCH, MERGE, FRAMES, VOCAB = 16, 4, 2, 640


@dataclass(frozen=True)
class VisionShape:
    """Sizes of a model: `layers` to `kv_heads` of the text model, with heads of 128 lanes, the others of the tower."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    depth: int
    width: int
    mlp: int
    tower_heads: int
    taps: tuple[int, ...]


SHAPES = {
    "0.5b": VisionShape(28, 1024, 3072, 16, 8, 12, 768, 3072, 12, (3, 6, 9)),
    "60m": VisionShape(8, 512, 1536, 4, 2, 6, 384, 1536, 6, (1, 3)),
    "tiny": VisionShape(2, 128, 128, 1, 1, 2, 64, 64, 1, (0,)),
}
"""The text model of 0.5b is Qwen3-0.6B's but for the vocabulary of 640, its tower has 86M parameters."""


def make_vision_model(folder: Path, name: str) -> Path:
    """Return the checkpoint of a shape, made in `folder` unless it exists."""
    path = folder / "models" / f"vision-{name}"
    if not path.exists():
        half = path.with_name(f"{path.name}.{os.getpid()}")
        _write(half, SHAPES[name])
        try:
            half.rename(path)
        except OSError:  # another process was first
            shutil.rmtree(half)
    return path


def data_url(side: int, seed: int) -> str:
    """Return a PNG of `side` x `side` pixels: random colours in 32 rows and columns, scaled up."""
    colours = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _write(path: Path, shape: VisionShape) -> None:
    heads = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": 128}
    sections = {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
    make_vision_description(
        path,
        vision={
            "model_type": "qwen3_vl", "depth": shape.depth, "hidden_size": shape.width, "in_channels": 3,
            "intermediate_size": shape.mlp, "num_heads": shape.tower_heads, "out_hidden_size": shape.hidden,
            "patch_size": PATCH, "num_position_embeddings": 48 * 48, "deepstack_visual_indexes": list(shape.taps),
        },
        text={
            "model_type": "qwen3_vl_text", "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
            "num_hidden_layers": shape.layers, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False,
            "max_position_embeddings": 32768, "tie_word_embeddings": True, **heads,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, **sections},
        },
        fields={"dtype": "bfloat16", "tie_word_embeddings": True},
        preprocessor={"size": {"longest_edge": 1 << 24, "shortest_edge": 1 << 16}, "patch_size": PATCH},
    )  # fmt: skip
    text = make_checkpoint(
        path / "text", "qwen3", dtype="bfloat16", layers=shape.layers, hidden=shape.hidden, heads=shape.heads,
        kv_heads=shape.kv_heads, head_dim=128, ffn=shape.ffn, vocab=VOCAB,
    )  # fmt: skip
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor for name, tensor in open_weights(text).items()
    }
    write_safetensors(path / "model.safetensors", tensors | _tower(shape))
    shutil.rmtree(text)


def _tower(shape: VisionShape) -> Tensors:
    """Return the tensors of the tower, under the names of published checkpoints."""
    rng, width, merged = np.random.default_rng(1), shape.width, MERGE * shape.width
    made: Tensors = {}

    def linear(name: str, outputs: int, *inputs: int) -> None:
        scale = np.prod(inputs) ** -0.5
        weight = rng.standard_normal((outputs, *inputs), np.float32) * np.float32(scale)
        made[f"{name}.weight"] = weight.astype(ml_dtypes.bfloat16)
        made[f"{name}.bias"] = np.zeros(outputs, ml_dtypes.bfloat16)

    def norm(name: str, size: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = (each(size, ml_dtypes.bfloat16) for each in (np.ones, np.zeros))

    def merger(name: str, size: int) -> None:
        norm(f"{name}.norm", size)
        linear(f"{name}.linear_fc1", merged, merged)
        linear(f"{name}.linear_fc2", shape.hidden, merged)

    linear("patch_embed.proj", width, 3, FRAMES, PATCH, PATCH)
    made["pos_embed.weight"] = (0.3 * rng.standard_normal((48 * 48, width), np.float32)).astype(ml_dtypes.bfloat16)
    for layer in (f"blocks.{number}" for number in range(shape.depth)):
        norm(f"{layer}.norm1", width)
        norm(f"{layer}.norm2", width)
        linear(f"{layer}.attn.qkv", 3 * width, width)
        linear(f"{layer}.attn.proj", width, width)
        linear(f"{layer}.mlp.linear_fc1", shape.mlp, width)
        linear(f"{layer}.mlp.linear_fc2", width, shape.mlp)
    merger("merger", width)
    for number in range(len(shape.taps)):
        merger(f"deepstack_merger_list.{number}", merged)
    return {f"model.visual.{name}": tensor for name, tensor in made.items()}
