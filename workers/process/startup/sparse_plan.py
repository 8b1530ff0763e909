"""Sparse prefill of a worker: whether its two models can do it, and what it costs, before anything is loaded."""

from pathlib import Path

from workers.checkpoints.architectures.parts import full_layers
from workers.checkpoints.architectures.tensors import size_of, stored_parameter_count, tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lone_config import LoneConfig
from workers.engine.sparse.cost import LEAST_RATIO, PromptCost
from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec

_EXPERTS = frozenset({"experts_gate_up", "experts_up", "experts_down"})


class SparseRefused(LoadRefused):
    """Raised for `sparse_prefill` with models that cannot do it; the text says why."""


def check_sparse(spec: WorkerSpec, config: ModelConfig | LoneConfig) -> None:
    """Refuse `sparse_prefill` with a draft model that is too large or whose attention cannot be scored, or with a model
    of which no token may be left out. Raises `SparseRefused`."""
    if isinstance(config, LoneConfig):
        raise SparseRefused(
            f"sparse_prefill: {spec.model_path} runs alone, with the caches of mlx-lm, whose rows are at consecutive "
            "positions: leave it out"
        )
    if any(layer.kind != "attention" for layer in config.plan):
        raise SparseRefused(
            f"sparse_prefill: {spec.model_path} has layers with a recurrent state, which would miss the tokens that "
            "are left out: leave it out"
        )
    if len(full_layers(config.plan)) < len(config.plan):
        raise SparseRefused(
            f"sparse_prefill: {spec.model_path} has layers with an attention window, which counts the tokens that are "
            "left out: leave it out"
        )
    small = ModelConfig.from_dir(Path(spec.draft_model))
    mine, others = stored_parameter_count(small), stored_parameter_count(config)
    if LEAST_RATIO * mine > others:
        raise SparseRefused(
            f"sparse_prefill: {spec.draft_model} has {mine} parameters, and {spec.model_path} has {others}: give a "
            f"draft model that is {LEAST_RATIO} times smaller at least"
        )
    if not full_layers(small.plan) or small.attention_cap is not None:
        raise SparseRefused(
            f"sparse_prefill: {spec.draft_model} has no layer without an attention window, or caps its attention: "
            "give another draft model"
        )


def prompt_cost(config: ModelConfig) -> PromptCost:
    """Return what a prompt costs: the matrices of all layers, of a mixture the experts of one token, and attention."""
    weights = 0.0
    for tensor in tensors(config):
        layer, _, name = tensor.name.rpartition(".")
        if layer:
            share = config.experts.per_token / config.experts.count if config.experts and name in _EXPERTS else 1.0
            weights += size_of(tensor) * share
    return PromptCost(round(weights), config.layers * config.heads * config.head_dim)
