"""Loads the weights of a checkpoint into a model of mlx-lm, from the files and tensors that both backends read."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn

from workers.checkpoints.architectures.config import SCORE, ModelConfig
from workers.checkpoints.architectures.tensors import is_derived, is_later_layer
from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.low_bits.low_bit_weights import LowBitWeights
from workers.checkpoints.mlx_files.converted_weights import DELTA, NORMS, converted_name
from workers.checkpoints.quantization_config import Quantization
from workers.checkpoints.quantized_matrix import AWQ_ORDER
from workers.checkpoints.weights import SafetensorsWeights, Weights
from workers.mlx.converted_tensors import Groups, read_converted
from workers.mlx.modules.latent import is_of_heads, split_heads
from workers.mlx.modules.routed_experts import rename_router_biases
from workers.mlx.mtp import MtpLayer, load_mtp

_Value = TypeVar("_Value")
_AWQ_BITS = 4
CONVERTED_HERE = ("qwen3_next",)
"""Families of which mlx-lm adds one to the weights of norms only where it stacks the experts, too."""
RENAMED_HERE = ("gpt_neox",)
"""Families whose modules have other names in mlx-lm, which it gives to tensors when it reads them."""
SHARED_MLP = (".shared_mlp.", ".mlp.")
"""Part of the names of tensors of Granite 4 without experts, in checkpoints and in mlx-lm."""
SHARED_APART, SHARED = ("shared_mlp.gate_proj", "shared_mlp.up_proj"), "shared_mlp.input_linear"
"""The matrices of Granite's shared expert in GGUF files, and the one that mlx-lm has in their place."""
UNGATED = ((".switch_mlp.up_proj", ".switch_mlp.fc1"), (".switch_mlp.down_proj", ".switch_mlp.fc2"))
"""Parts of the names of stacks of experts without a gate, and what mlx-lm calls them."""
INTERLEAVED = ("gpt_oss",)
"""Families whose stacks are transposed, or in MXFP4: they are taken apart as they are for IREE."""
_EXPERT = re.compile(r"(.+\.)experts\.(\d+)\.((?:gate|up|down)_proj\..+)")


def load_weights(model: Any, weights: Weights, config: ModelConfig, mtp: MtpLayer | None = None) -> None:
    """Give a model its weights, which are read lazily, and those of its head for multi-token prediction. Quantized
    matrices stay quantized.

    Raises `ValueError`, `KeyError` or `RuntimeError` for weights that do not fit.
    """
    quantization, groups = config.quantization, None
    interleaved = config.family in INTERLEAVED
    if isinstance(weights, GgufWeights | LowBitWeights) or (interleaved and quantization is None):
        container = "experts" if interleaved else "switch_mlp"
        tensors, groups = read_converted(weights, lambda name: unread(name, config), container)
    else:
        assert isinstance(weights, SafetensorsWeights)  # there is no third kind
        tensors = {name: tensor for name, tensor in _read(weights).items() if not unread(name, config)}
    if config.family == "granitemoehybrid" and config.experts is None:
        tensors, groups = _renamed(tensors, *SHARED_MLP), groups and _renamed(groups, *SHARED_MLP)
    if config.names.experts.shared_gate_up == SHARED_APART:
        tensors, groups = _joined(tensors, mx.concatenate), groups and _joined(groups, lambda parts: parts[0])
    if config.family == "lfm2_moe":  # mlx-lm itself renames plain matrices alone
        tensors = {converted_name(name): tensor for name, tensor in tensors.items()}
        groups = groups and {converted_name(name): each for name, each in groups.items()}
    if quantization is not None and quantization.method == "awq":
        tensors = _from_awq(tensors)
    if mtp is not None:
        load_mtp(mtp, tensors, quantization)
    if config.latent is not None:
        tensors = split_heads(tensors, config, _groups_of(tensors, quantization, groups))
    tensors = rename_router_biases(tensors, config)
    if not interleaved:
        transposed = isinstance(weights, SafetensorsWeights) and weights.stacks == "transposed"
        tensors = _stack_experts(tensors, transposed=transposed)
    if config.experts is not None and not config.experts.gated:
        for old, new in UNGATED:
            tensors, groups = _renamed(tensors, old, new), groups and _renamed(groups, old, new)
    if config.family in CONVERTED_HERE:
        tensors = _from_original(tensors)
    if config.experts_beside_mlp:
        tensors = {_beside_mlp(name): tensor for name, tensor in tensors.items()}
        groups = groups and {_beside_mlp(name): group for name, group in groups.items()}
    if hasattr(model, "sanitize"):
        tensors = model.sanitize(tensors)
        groups = model.sanitize(groups) if groups and config.family in RENAMED_HERE else groups
    if quantization is not None:
        _quantize_modules(model, tensors, quantization)
    if groups is not None:
        _quantize_groups(model, groups)
    model.eval()
    model.load_weights(list(tensors.items()), strict=True)


def unread(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor is left out, as no module of mlx-lm has it."""
    scores = SCORE in config.other_tensors and name.startswith(SCORE)
    return is_derived(name, config) or is_later_layer(name, config) or scores


def _read(weights: SafetensorsWeights) -> dict[str, mx.array]:
    """Open the tensors where `weights` has found them; other files of the folder are left alone."""
    files: dict[str, Any] = {}
    tensors = {}
    for name, file, stored in weights.locations():
        if str(file) not in files:
            files[str(file)] = mx.load(str(file))
        tensors[name] = files[str(file)][stored]
    return tensors


def _renamed(items: Mapping[str, _Value], old: str, new: str) -> dict[str, _Value]:
    """Replace a part of names."""
    return {name.replace(old, new): item for name, item in items.items()}


def _joined(items: Mapping[str, _Value], join: Callable[[list[_Value]], _Value]) -> dict[str, _Value]:
    """Join what belongs to the two matrices of Granite's shared expert."""
    gate, up = SHARED_APART
    out = {name: item for name, item in items.items() if gate not in name and up not in name}
    pairs = {name: [item, items[name.replace(gate, up)]] for name, item in items.items() if gate in name}
    return out | {name.replace(gate, SHARED): join(pair) for name, pair in pairs.items()}


def _stack_experts(tensors: Mapping[str, mx.array], *, transposed: bool) -> dict[str, mx.array]:
    """Stack the matrices of a layer's experts as the modules of mlx-lm have them, from single ones or from
    transformers' stacks, whose gates and up matrices are one tensor, and which may be `transposed`."""
    out: dict[str, mx.array] = {}
    stacks: dict[str, dict[int, mx.array]] = {}
    for name, tensor in tensors.items():
        block, _, part = name.rpartition("experts.")
        if transposed and part in ("gate_up_proj", "down_proj"):
            tensor = mx.contiguous(tensor.swapaxes(1, 2))
        if part == "gate_up_proj":
            gate, up = mx.split(tensor, 2, axis=1)
            out |= {f"{block}switch_mlp.gate_proj.weight": gate, f"{block}switch_mlp.up_proj.weight": up}
        elif part in ("up_proj", "down_proj"):
            out[f"{block}switch_mlp.{part}.weight"] = tensor
        elif (match := _EXPERT.fullmatch(name)) is not None:
            stacks.setdefault(f"{match[1]}switch_mlp.{match[3]}", {})[int(match[2])] = tensor
        else:
            out[name] = tensor
    return out | {name: mx.stack([parts[expert] for expert in sorted(parts)]) for name, parts in stacks.items()}


def _from_original(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Convert the convolutions and norms of an original checkpoint; one that mlx-lm has converted is left as it is."""
    original = {name for name, tensor in tensors.items() if name.endswith(DELTA) and tensor.shape[-1] != 1}
    if not original:
        return dict(tensors)
    out = dict(tensors)
    for name, tensor in tensors.items():
        if name in original:
            out[name] = tensor.swapaxes(1, 2)
        elif name.endswith(NORMS) and tensor.ndim == 1:
            out[name] = tensor + 1.0
    return out


def _groups_of(
    tensors: Mapping[str, mx.array], quantization: Quantization | None, groups: Groups | None
) -> Mapping[str, tuple[int, int]]:
    """Return the (group size, bits) of the quantized matrices of keys and values of all heads."""
    found = {name: (group["group_size"], group["bits"]) for name, group in (groups or {}).items()}
    for name in tensors if quantization is not None else ():
        module = name.removesuffix(".scales")
        if quantization is not None and module != name and module not in found and is_of_heads(name):
            found[module] = quantization.of(module)
    return found


def _beside_mlp(name: str) -> str:
    """Return the name in mlx-lm's Gemma 4 of what other models call `switch_mlp`."""
    return name.replace(".switch_mlp.", ".experts.switch_glu.")


def _quantize_modules(model: Any, tensors: Mapping[str, mx.array], quantization: Quantization) -> None:
    """Replace the modules that have scales by quantized ones of the checkpoint's groups."""

    def groups(name: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or f"{name}.scales" not in tensors:
            return False
        group, bits = quantization.of(name)
        group = module.weight.shape[-1] if group == -1 else group
        return {"group_size": group, "bits": bits, "mode": quantization.mode_of(name)}

    nn.quantize(model, class_predicate=groups)


def _quantize_groups(model: Any, groups: Groups) -> None:
    """Replace the modules that have groups by quantized ones."""

    def group(name: str, module: Any) -> bool | dict[str, Any]:
        return dict(groups[name]) if name in groups else False

    nn.quantize(model, class_predicate=group)


def _from_awq(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Convert matrices in AutoAWQ's GEMM format, described at `quantized_matrix.from_awq`, to MLX's affine mode.

    A weight is `scale * (level - zero)` there and `scale * level + bias` here. Scales and biases are in float32, in
    which the product of a scale of 16 bits and a zero is exact.
    """
    out: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if f"{module}.qweight" not in tensors or part not in ("qweight", "scales", "qzeros"):
            out[name] = tensor
        elif part == "qweight":
            scales = mx.contiguous(tensors[f"{module}.scales"].T.astype(mx.float32))
            zeros = _unpack_awq(tensors[f"{module}.qzeros"]).T.astype(mx.float32)
            levels = _unpack_awq(tensor).T
            words = levels.reshape(levels.shape[0], -1, len(AWQ_ORDER)) << _shifts(range(len(AWQ_ORDER)))
            out |= {f"{module}.weight": words.sum(-1), f"{module}.scales": scales, f"{module}.biases": -zeros * scales}
    return out


def _unpack_awq(words: mx.array) -> mx.array:
    """[rows, words] of eight interleaved fields -> the levels, uint32 [rows, words * 8]."""
    fields = (words.view(mx.uint32)[..., None] >> _shifts(AWQ_ORDER)) & ((1 << _AWQ_BITS) - 1)
    return fields.reshape(words.shape[0], -1)


def _shifts(fields: Any) -> mx.array:
    """The lowest bits of these fields of a word."""
    return mx.array([_AWQ_BITS * field for field in fields], dtype=mx.uint32)
