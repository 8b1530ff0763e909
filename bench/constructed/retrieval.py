"""A Llama whose weights are set so that it finds any token of its prompt again, at any distance.

Two of its layers do something, as the two heads of an induction circuit (https://arxiv.org/abs/2209.11895). A token is
a code of 64 signs. The head of layer 0 attends to the token before, by the fast rotary pairs, whose phases agree at a
distance of one alone, and notes its code. That of layer 1 compares the code of the last token with these notes, on
rotary pairs that turn by less than 0.2 within 16,384 positions, and copies the token where they agree: the one that
followed when the last token was there before. All other layers have zeros where they would write, and cost time only.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import write_safetensors

VOCAB = 2048
CODE = 64
"""Signs of the code of a token."""
LANES = 128
THETA = 1e10
"""Half of the rotary pairs turn by 1 to 1.4e-5 a token, the others by less."""
FAST = LANES // 4
BEFORE = 30.0
"""Score of the token before a token relative to those beside it."""
MATCH = 48.0
"""Score of an equal token, where that of another one is 0 on average and deviates by an eighth of it."""
_NOTED, _FOUND, _ONE = CODE, 2 * CODE, 3 * CODE
"""Places in the residual stream of the code of the token before, of that of the token found, and of a constant. The own
code of a token is first."""

Matrix = NDArray[Any]


def make_retrieval(
    folder: Path,
    *,
    layers: int = 2,
    hidden: int = 256,
    ffn: int = 128,
    seen: int = CODE,
    max_positions: int = 32768,
) -> Path:
    """Make the checkpoint in bfloat16 in `folder` unless it exists. `seen` are the signs of a code that are compared:
    with few of them other tokens seem equal. Raises `ValueError` for sizes that do not hold the circuit."""
    if layers < 2 or hidden <= _ONE or not 0 < seen <= CODE:
        raise ValueError(f"layers, hidden, seen: at least 2, {_ONE + 1} and 1 to {CODE}")
    path = folder / f"retrieval-{layers}-{hidden}-{ffn}-{seen}"
    if path.exists():
        return path
    path.mkdir(parents=True)
    codes = np.sign(np.random.default_rng(64).standard_normal((VOCAB, CODE))).astype(np.float32)
    tensors = _tensors(codes, layers, hidden, ffn, seen)
    write_safetensors(
        path / "model.safetensors", {name: each.astype(ml_dtypes.bfloat16) for name, each in tensors.items()}
    )
    config = _config(layers, hidden, ffn, max_positions)
    (path / "config.json").write_text(json.dumps(config))
    return path


def parameters(path: Path) -> int:
    """Return the parameters of a checkpoint in bfloat16."""
    return (path / "model.safetensors").stat().st_size // 2


def _tensors(codes: Matrix, layers: int, hidden: int, ffn: int, seen: int) -> dict[str, Matrix]:
    embedding, head = np.zeros((2, VOCAB, hidden), np.float32)
    embedding[:, :CODE], embedding[:, _ONE] = codes, np.sqrt(CODE)
    head[:, _FOUND : _FOUND + CODE] = codes
    tensors: dict[str, Matrix] = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": np.ones(hidden),
    }
    circuits = (_attend_before(hidden), _attend_equal(hidden, seen))
    for layer in range(layers):
        name = f"model.layers.{layer}."
        queries, keys, values, output = (
            circuits[layer] if layer < 2 else (np.zeros((LANES, hidden)),) * 3 + (np.zeros((hidden, LANES)),)
        )
        tensors |= {
            f"{name}self_attn.q_proj.weight": queries,
            f"{name}self_attn.k_proj.weight": keys,
            f"{name}self_attn.v_proj.weight": values,
            f"{name}self_attn.o_proj.weight": output,
            f"{name}mlp.gate_proj.weight": np.zeros((ffn, hidden)),
            f"{name}mlp.up_proj.weight": np.zeros((ffn, hidden)),
            f"{name}mlp.down_proj.weight": np.zeros((hidden, ffn)),
            f"{name}input_layernorm.weight": np.ones(hidden),
            f"{name}post_attention_layernorm.weight": np.ones(hidden),
        }
    return tensors


def _attend_before(hidden: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return the matrices of layer 0: queries are keys that are turned back by one position."""
    queries, keys, values, output = _empty(hidden)
    rms = np.sqrt(2 * CODE / hidden)  # of a code and the constant
    angles = THETA ** (-np.arange(FAST) / (LANES // 2))
    beside = np.sum(1 - np.cos(angles))
    amplitude = np.sqrt(BEFORE / beside * np.sqrt(LANES)) * rms / np.sqrt(CODE)
    lanes = np.arange(FAST)
    keys[lanes, _ONE] = amplitude
    queries[lanes, _ONE] = amplitude * np.cos(angles)
    queries[lanes + LANES // 2, _ONE] = -amplitude * np.sin(angles)
    values[np.arange(CODE), np.arange(CODE)] = rms
    output[_NOTED + np.arange(CODE), np.arange(CODE)] = 1.0
    return queries, keys, values, output


def _attend_equal(hidden: int, seen: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return the matrices of layer 1."""
    queries, keys, values, output = _empty(hidden)
    rms = np.sqrt(3 * CODE / hidden)  # of both codes and the constant
    amplitude = np.sqrt(MATCH / seen * np.sqrt(LANES)) * rms
    signs = np.arange(seen)
    lanes = FAST + np.where(signs < FAST, signs, signs - FAST + LANES // 2)
    queries[lanes, signs] = keys[lanes, _NOTED + signs] = amplitude
    values[np.arange(CODE), np.arange(CODE)] = rms
    output[_FOUND + np.arange(CODE), np.arange(CODE)] = 1.0
    return queries, keys, values, output


def _empty(hidden: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    queries, keys, values = np.zeros((3, LANES, hidden), np.float32)
    return queries, keys, values, np.zeros((hidden, LANES), np.float32)


def _config(layers: int, hidden: int, ffn: int, max_positions: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": LANES,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "rope_theta": THETA,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "eos_token_id": 1,
    }
