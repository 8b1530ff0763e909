"""Tensors of MLPs and of mixtures of experts, as transformers names them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.families.weights import NamedTensors, RandomWeights


def dense(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    yield "mlp.gate_proj.weight", weights.matrix(ffn, hidden, 1.0)
    yield "mlp.up_proj.weight", weights.matrix(ffn, hidden, 1.0)
    yield "mlp.down_proj.weight", weights.matrix(hidden, ffn, 2.0)


def qwen_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    if layer in config["mlp_only_layers"]:
        return dense(config, layer, weights)
    sizes = (config["num_experts"], config["moe_intermediate_size"], config["hidden_size"])
    return _experts("mlp", ("gate_proj", "up_proj", "down_proj"), sizes, weights)


def mixtral_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    sizes = (config["num_local_experts"], config["intermediate_size"], config["hidden_size"])
    return _experts("block_sparse_moe", ("w1", "w3", "w2"), sizes, weights)


def _experts(
    block: str, names: tuple[str, str, str], sizes: tuple[int, int, int], weights: RandomWeights
) -> NamedTensors:
    """`names` are those of gate, up and down; `sizes` the number of experts and the widths of one and of the model."""
    count, ffn, hidden = sizes
    yield f"{block}.gate.weight", weights.matrix(count, hidden, 2.0)
    for expert in range(count):
        for name, (rows, columns) in zip(names, ((ffn, hidden), (ffn, hidden), (hidden, ffn)), strict=True):
            gain = 2.0 if rows == hidden else 1.0
            yield f"{block}.experts.{expert}.{name}.weight", weights.matrix(rows, columns, gain)


def shared_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Qwen's mixture with an expert that computes every row, with a gate."""
    if layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"]:
        yield from dense(config, layer, weights)
        return
    hidden, ffn = config["hidden_size"], config["shared_expert_intermediate_size"]
    yield from qwen_experts(config, layer, weights)
    for name, rows, columns, gain in (("gate", ffn, hidden, 1.0), ("up", ffn, hidden, 1.0), ("down", hidden, ffn, 2.0)):
        yield f"mlp.shared_expert.{name}_proj.weight", weights.matrix(rows, columns, gain)
    yield "mlp.shared_expert_gate.weight", weights.matrix(1, hidden, 2.0)


def olmoe_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    sizes = (config["num_experts"], config["intermediate_size"], config["hidden_size"])
    return _experts("mlp", ("gate_proj", "up_proj", "down_proj"), sizes, weights)


def granite_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Experts in stacks, the gates before the up matrices, and the shared expert of some models likewise."""
    count, ffn, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    yield "block_sparse_moe.router.layer.weight", weights.matrix(count, hidden, 2.0)
    stacks = [[weights.matrix(2 * ffn, hidden, 1.0), weights.matrix(hidden, ffn, 2.0)] for _ in range(count)]
    for number, name in enumerate(("input_linear", "output_linear")):
        yield f"block_sparse_moe.{name}.weight", np.stack([expert[number] for expert in stacks])
    shared = config.get("shared_intermediate_size")
    if shared is not None:
        yield "shared_mlp.input_linear.weight", weights.matrix(2 * shared, hidden, 1.0)
        yield "shared_mlp.output_linear.weight", weights.matrix(hidden, shared, 2.0)


def routed_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """GLM-4.5's mixture behind dense layers: a bias of the router, and experts that compute every row."""
    if layer < config["first_k_dense_replace"]:
        yield from dense(config, layer, weights)
        return
    count = config["n_routed_experts"]
    yield from _counted_experts(config, count, config["n_shared_experts"], weights)
    yield "mlp.gate.e_score_correction_bias", weights.bias(count)


def softmax_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """DeepSeek-V2's mixture behind dense layers, whose router has no bias."""
    yield from ((name, each) for name, each in routed_experts(config, layer, weights) if not name.endswith("bias"))


def ernie_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """ERNIE's, whose bias is a matrix of one row."""
    if layer < config["moe_layer_start_index"]:
        yield from dense(config, layer, weights)
        return
    count = config["moe_num_experts"]
    yield from _counted_experts(config, count, config["moe_num_shared_experts"], weights)
    yield "mlp.moe_statics.e_score_correction_bias", weights.bias(count)[None] / 2


def _counted_experts(config: Mapping[str, Any], count: int, shared: int, weights: RandomWeights) -> NamedTensors:
    """Experts, and a number of shared ones that are one MLP."""
    ffn, hidden = config["moe_intermediate_size"], config["hidden_size"]
    yield from _experts("mlp", ("gate_proj", "up_proj", "down_proj"), (count, ffn, hidden), weights)
    for name, tensor in dense({"hidden_size": hidden, "intermediate_size": shared * ffn}, 0, weights):
        yield name.replace("mlp.", "mlp.shared_experts."), tensor


def lfm2_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Experts of LFM2 behind dense layers, with a bias of the router."""
    names = ("w1", "w3", "w2")
    if layer < config["num_dense_layers"]:
        for name, (_, tensor) in zip(names, dense(config, layer, weights), strict=True):
            yield f"feed_forward.{name}.weight", tensor
        return
    sizes = (config["num_experts"], config["moe_intermediate_size"], config["hidden_size"])
    yield from _experts("feed_forward", names, sizes, weights)
    yield "feed_forward.expert_bias", weights.bias(config["num_experts"])


def granite_mlp(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """The shared expert, beside others if the model has any."""
    hidden, shared = config["hidden_size"], config["shared_intermediate_size"]
    if config["num_local_experts"]:
        yield from granite_experts(config, layer, weights)
        return
    yield "shared_mlp.input_linear.weight", weights.matrix(2 * shared, hidden, 1.0)
    yield "shared_mlp.output_linear.weight", weights.matrix(hidden, shared, 2.0)


def lfm2_mlp(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """The width is two thirds of `intermediate_size`, times a factor, rounded up to a multiple."""
    hidden, multiple = config["hidden_size"], config["block_multiple_of"]
    ffn = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
    ffn = (ffn + multiple - 1) // multiple * multiple
    yield "feed_forward.w1.weight", weights.matrix(ffn, hidden, 1.0)
    yield "feed_forward.w3.weight", weights.matrix(ffn, hidden, 1.0)
    yield "feed_forward.w2.weight", weights.matrix(hidden, ffn, 2.0)
