"""Layers of families with LayerNorm, MLPs without gates, or other stacks of matrices, as transformers has them."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, Any]
NamedTensors = Iterator[tuple[str, NDArray[Any]]]
FALCON_MLP = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
GAINS = {"q": 2.0, "k": 2.0, "v": 1.0}


class RandomWeights(Protocol):
    """See `tests.families.RandomWeights`."""

    rng: np.random.Generator

    def matrix(self, rows: int, columns: int, gain: float) -> NDArray[Any]: ...

    def norm(self, size: int, gain: float = 1.0) -> NDArray[Any]: ...

    def bias(self, size: int) -> NDArray[Any]: ...


def linear(w: RandomWeights, name: str, rows: int, columns: int, gain: float = 1.0, *, bias: bool) -> NamedTensors:
    yield f"{name}.weight", w.matrix(rows, columns, gain)
    if bias:
        yield f"{name}.bias", w.bias(rows)


def layer_norm(w: RandomWeights, name: str, size: int, *, bias: bool = True) -> NamedTensors:
    yield f"{name}.weight", w.norm(size)
    if bias:
        yield f"{name}.bias", w.bias(size)


def attention(c: Config, w: RandomWeights, *, bias: bool, o_bias: bool, o: str = "self_attn.o_proj") -> NamedTensors:
    hidden, queries = c["hidden_size"], c["num_attention_heads"] * c["head_dim"]
    keys = c["num_key_value_heads"] * c["head_dim"]
    for name, size in (("q", queries), ("k", keys), ("v", keys)):
        yield from linear(w, f"self_attn.{name}_proj", size, hidden, GAINS[name], bias=bias)
    yield from linear(w, o, hidden, queries, bias=o_bias)


def two_matrices(c: Config, w: RandomWeights, up: str, down: str, *, bias: bool) -> NamedTensors:
    """An MLP without a gate."""
    yield from linear(w, up, c["intermediate_size"], c["hidden_size"], bias=bias)
    yield from linear(w, down, c["hidden_size"], c["intermediate_size"], 2.0, bias=bias)


def starcoder2(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    yield from attention(c, w, bias=c["use_bias"], o_bias=c["use_bias"])
    yield from two_matrices(c, w, "mlp.c_fc", "mlp.c_proj", bias=c["use_bias"])
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield from layer_norm(w, name, c["hidden_size"])


def gated(c: Config, w: RandomWeights) -> NamedTensors:
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    yield from linear(w, "mlp.gate_proj", ffn, hidden, bias=False)
    yield from linear(w, "mlp.up_proj", ffn, hidden, bias=False)
    yield from linear(w, "mlp.down_proj", hidden, ffn, 2.0, bias=False)


def stablelm(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    yield from attention(c, w, bias=c["use_qkv_bias"], o_bias=False)
    yield from gated(c, w)
    yield from layer_norm(w, "input_layernorm", c["hidden_size"])
    if not c["use_parallel_residual"]:
        yield from layer_norm(w, "post_attention_layernorm", c["hidden_size"])
    for name, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"])):
        for head in range(heads if c["qk_layernorm"] else 0):
            yield f"self_attn.{name}_layernorm.norms.{head}.weight", w.norm(c["head_dim"], 2.0)


def gpt_neox(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    hidden, bias = c["hidden_size"], c["attention_bias"]
    yield from linear(w, "attention.query_key_value", 3 * hidden, hidden, 1.5, bias=bias)
    yield from linear(w, "attention.dense", hidden, hidden, bias=bias)
    yield from two_matrices(c, w, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield from layer_norm(w, name, hidden)


def cohere(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    yield from attention(c, w, bias=c["attention_bias"], o_bias=c["attention_bias"])
    yield from gated(c, w)
    yield from layer_norm(w, "input_layernorm", c["hidden_size"], bias=False)
    if c.get("use_qk_norm"):
        for name, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"])):
            yield f"self_attn.{name}_norm.weight", w.norm(heads * c["head_dim"], 2.0).reshape(heads, -1)


def phi(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    yield from attention(c, w, bias=True, o_bias=True, o="self_attn.dense")
    yield from two_matrices(c, w, "mlp.fc1", "mlp.fc2", bias=True)
    yield from layer_norm(w, "input_layernorm", c["hidden_size"])


def falcon(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    hidden, heads, bias = c["hidden_size"], c["num_attention_heads"], c["bias"]
    newer = c["new_decoder_architecture"]
    kv = c["num_kv_heads"] if newer else 1 if c["multi_query"] else heads
    yield from linear(w, "self_attention.query_key_value", (heads + 2 * kv) * (hidden // heads), hidden, 1.5, bias=bias)
    yield from linear(w, "self_attention.dense", hidden, hidden, bias=bias)
    yield from two_matrices({**c, "intermediate_size": c["ffn_hidden_size"]}, w, *FALCON_MLP, bias=bias)
    both = ("input_layernorm", "post_attention_layernorm")
    two = newer and c.get("num_ln_in_parallel_attn", 2) == 2
    for name in ("ln_attn", "ln_mlp") if two else both[:1] if c["parallel_attn"] else both:
        yield from layer_norm(w, name, hidden)


def glm(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    hidden, ffn = c["hidden_size"], c["intermediate_size"]
    yield from attention(c, w, bias=c["attention_bias"], o_bias=False)
    yield from linear(w, "mlp.gate_up_proj", 2 * ffn, hidden, bias=False)
    yield from linear(w, "mlp.down_proj", hidden, ffn, 2.0, bias=False)
    sandwich = ("post_self_attn_layernorm", "post_mlp_layernorm") if c["model_type"] == "glm4" else ()
    for name in ("input_layernorm", "post_attention_layernorm", *sandwich):
        yield f"{name}.weight", w.norm(hidden)


def nemotron(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    yield from attention(c, w, bias=c["attention_bias"], o_bias=c["attention_bias"])
    yield from two_matrices(c, w, "mlp.up_proj", "mlp.down_proj", bias=c["mlp_bias"])
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield from layer_norm(w, name, c["hidden_size"])


def ernie4_5(c: Config, layer: int, w: RandomWeights) -> NamedTensors:
    hidden, bias = c["hidden_size"], c["use_bias"]
    yield from attention(c, w, bias=bias, o_bias=bias)
    for name in ("gate_proj", "up_proj"):
        yield from linear(w, f"mlp.{name}", c["intermediate_size"], hidden, bias=bias)
    yield from linear(w, "mlp.down_proj", hidden, c["intermediate_size"], 2.0, bias=bias)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", w.norm(hidden)
