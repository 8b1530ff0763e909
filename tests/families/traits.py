"""The differences of a family's checkpoints from Llama's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.families.mlps import dense
from tests.families.weights import LayerTensors, NamedTensors, RandomWeights

WINDOW = 24
"""The window of families that need one: not a multiple of a tile, and shorter than the tests' prompts."""
BEFORE = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True)
class Traits:
    """The properties of a family's checkpoints; the defaults are Llama's."""

    architecture: str
    """The class in transformers."""
    fields: Callable[[int], Mapping[str, Any]] = lambda layers: {}
    """Further fields of config.json, for a number of layers."""
    optional_bias: bool = True
    """config.json has `attention_bias`, which gives all four projections of attention a bias."""
    qkv_bias: bool = False
    """Queries, keys and values always have a bias, the output never."""
    norms: tuple[str, ...] = BEFORE
    """The norms of a layer."""
    centred_norms: bool = False
    """One is added to the weights of norms."""
    head_norm: Literal["each", "all"] | None = None
    """Norms of queries and keys: of each head, or of all heads together."""
    mtp: bool = False
    """The checkpoint has heads for multi-token prediction."""
    extra_layer: bool = False
    """The checkpoint has a tensor of a layer behind the last one, for multi-token prediction."""
    fused: bool = False
    """Queries, keys and values are one matrix, and so are gate and up."""
    mlp: LayerTensors = dense
    layer: LayerTensors | None = None
    """The tensors of a layer, where they are not like Llama's: `norms`, `head_norm` and `mlp` do not matter then."""
    beside: Callable[[Mapping[str, Any], RandomWeights], NamedTensors] | None = None
    """Further tensors outside of layers."""
    names: tuple[str, str, str, str] = ("model.embed_tokens", "model.layers.", "model.norm", "lm_head")
    """The embedding, what the names of layers begin with, the last norm, and the head."""
    norm_weight: bool = True
    norm_bias: bool = False
    head_bias: bool = False
    """The last norm has a weight and a bias, and logits have a bias."""
    without: tuple[str, ...] = ()
    """Fields that config.json does not have."""
    mixer: LayerTensors | None = None
    """The tensors that mix rows with earlier ones, where they are not Llama's attention."""
    served_as: str | None = None
    """The `model_type` in transformers, if it is another one: the model's own code is not in transformers."""
