"""Makes the `mlx_lm` model of a checkpoint, with our attention and positions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.nn as nn

from workers.checkpoints.architectures.tensors import is_derived
from workers.checkpoints.architectures.wrapper import unwrap
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.documents import read_fields
from workers.checkpoints.weight_size import QUANTIZED_GROUP
from workers.mlx.architecture import bind_module
from workers.mlx.hybrid.states import SlotMixer
from workers.mlx.loading.adapter_choice import choose_adapter
from workers.mlx.loading.model_fields import model_fields
from workers.mlx.modules.routed_experts import replace_routers
from workers.mlx.mtp import LaterNorm, MtpLayer
from workers.mlx.rotary import Rotary, no_positions
from workers.mlx.runtime.adapter import apply_adapter
from workers.mlx.stored_weights import load_weights
from workers.precision import Quantize

ROUTERS = (".gate", ".router", ".router.layer", ".router.proj", ".shared_expert_gate")
"""Endings of the names of routers, and of the gate of the shared expert."""


def load_architecture(
    path: Path,
    config: ModelConfig,
    context: int,
    quantize: Quantize = "none",
    *,
    compiled: bool,
    adapter: Path | None = None,
    added: Callable[[Any], None] = lambda model: None,
) -> Any:
    """Make the `mlx_lm` model of a checkpoint, for slots of `context` rows, with a LoRA `adapter`, and what `added`
    adds to its modules while they have the names of mlx-lm. Weights are read lazily.

    Quantized layers stay quantized, unless a GGUF file is to be quantized anew by `quantize`. Raises `CheckpointError`
    for a checkpoint that mlx-lm would compute differently or whose weights do not fit, `LoadRefused` for a version of
    mlx-lm that is not supported.
    """
    family = choose_adapter(path, config)
    module = bind_module(family, compiled=compiled)
    fields, _ = unwrap(read_fields(path))
    weights = open_weights(path, quantize)
    weights.check_types(lambda name: is_derived(name, config))
    try:
        model_class, args_class = (getattr(module, name) for name in family.classes)
        args = args_class.from_dict({**fields.values, **model_fields(config, family), **family.fields(config)})
        model = model_class(args)
        if config.tie_embeddings and family.head == "removed":
            del model.lm_head
        if not config.tie_embeddings and family.head == "as_tied" and "lm_head" not in model:
            model.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        replace_routers(model, config)
        mtp = MtpLayer(module, args) if config.mtp else None
        load_weights(model, weights, config, mtp)
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(path, "", f"cannot be loaded by mlx-lm: {error}") from error
    if adapter is not None:  # before modules are wrapped, whose names it has
        apply_adapter(model, adapter)
    added(model)
    ropes = [Rotary(rope, context, interleaved=config.interleaved_rope) for rope in config.ropes]
    for module_layer, layer in zip(model.layers, config.plan, strict=True):
        if layer.kind == "none":
            continue
        if layer.kind == "attention":
            rope = no_positions if layer.rope is None else ropes[layer.rope]
            getattr(module_layer, family.attention).rope = rope
        else:
            setattr(module_layer, family.mixer, SlotMixer(getattr(module_layer, family.mixer)))
    family.adjust(model, config)
    if mtp is not None:
        mtp.block.self_attn.rope = ropes[0]
        model.mtp = mtp
        model.model.norm = LaterNorm(model.model.norm)
    return model


def quantize_matrices(path: Path, model: Any, bits: int) -> None:
    """Quantize the matrices of a lazily read model in place, where their rows are whole groups.

    Routers and gates are left out: they are small, and an error in a router chooses other experts. Raises
    `CheckpointError` when no matrix has rows of whole groups.
    """
    quantized = []

    def fits(name: str, module: Any) -> bool:
        fit = (
            not name.endswith(ROUTERS)
            and hasattr(module, "to_quantized")
            and module.weight.shape[-1] % QUANTIZED_GROUP == 0
        )
        quantized.append(fit)
        return fit

    nn.quantize(model, group_size=QUANTIZED_GROUP, bits=bits, class_predicate=fits)
    if not any(quantized):
        problem = f"no matrix has rows of whole groups of {QUANTIZED_GROUP}: none can be made int{bits}"
        raise CheckpointError(path / "config.json", "hidden_size", problem)
