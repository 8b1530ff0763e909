"""A Llama in which each token follows from the last one alone, and draft models that agree with it for a part of them.

Its layers compute all that those of its shape do, and add nothing: the head takes the embedding of each of `TOKENS` to
the next one of them. An answer is therefore known, whatever comes before.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness.shapes import SHAPES, TOKENS
from tests.checkpoints import make_checkpoint, write_safetensors
from workers.checkpoints.checkpoint import open_weights

OTHER = 7
"""Distance of the next token of a draft model where it does not agree."""


def make_successor(folder: Path, shape: str, agrees: float = 1.0) -> Path:
    """Make the checkpoint of a shape of `SHAPES` in bfloat16, in `folder` unless it exists, that agrees with that of
    any other one for such a part of the tokens."""
    path = folder / "models" / f"successor-{shape}-{agrees:g}"
    if path.exists():
        return path
    half = path.with_name(f"{path.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    sizes: dict[str, Any] = {"dtype": "bfloat16", "max_positions": 32768} | SHAPES[shape]
    make_checkpoint(half, tied=False, **sizes)
    weights = dict(open_weights(half))
    write_safetensors(half / "model.safetensors", {name: _changed(name, weights, agrees) for name in weights})
    half.rename(path)
    return path


def answer(token: int, count: int) -> list[int]:
    """Return the tokens that follow one of `TOKENS`."""
    return [TOKENS[(TOKENS.index(token) + at) % len(TOKENS)] for at in range(1, count + 1)]


def _changed(name: str, weights: dict[str, NDArray[Any]], agrees: float) -> NDArray[Any]:
    tensor = weights[name]
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return np.zeros_like(tensor)
    if name != "lm_head.weight":
        return tensor
    embeddings, head = weights["model.embed_tokens.weight"], np.zeros_like(tensor)
    wrong = np.random.default_rng(1).permutation(len(TOKENS))[round(agrees * len(TOKENS)) :]
    for at, token in enumerate(TOKENS):
        step = OTHER if at in wrong else 1
        head[TOKENS[(at + step) % len(TOKENS)]] += embeddings[token]
    return head
