"""Quantization in config.json by FP8, MXFP4, compressed-tensors, ModelOpt and bitsandbytes: the layouts that it means.

Only weights are quantized here. What these schemes say of activations is not followed: rows keep the model's type, or
the integers of Baton's own kernels, which are finer than FP8. A scheme for the KV cache is not followed either:
`--kv-dtype` has the choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.low_bits.bitsandbytes_layout import Table4Layout
from workers.checkpoints.low_bits.fp4_layouts import (
    MX_GROUP,
    NV_GROUP,
    Mxfp4Layout,
    Nvfp4Layout,
    StackedMxfp4Layout,
)
from workers.checkpoints.low_bits.fp8_layout import Fp8Layout
from workers.checkpoints.low_bits.integer_layouts import Int8RowsLayout, IntegerLayout
from workers.checkpoints.low_bits.layout import LowBitLayout, Shape

IGNORED = (
    *(".input_scale", ".input_global_scale", ".input_zero_point", ".activation_scale", ".output_scale"),
    *(".q_scale", ".k_scale", ".v_scale", ".kv_scale"),
)
"""Endings of the scales of activations and of KV caches, which are not read."""
INTEGER_BITS = (4, 8)


@dataclass(frozen=True, slots=True)
class LowBits:
    """The quantization of a checkpoint."""

    method: str
    """`quant_method` of config.json."""
    layouts: Sequence[LowBitLayout]
    """Layouts of its matrices, of which a matrix has one."""
    ignored: tuple[str, ...] = ()
    """Fields of config.json that are not followed: activations and KV caches."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The object in config.json, or one within it."""

    file: Path
    where: str
    fields: Mapping[str, Any]

    def error(self, field: str, problem: str) -> CheckpointError:
        return CheckpointError(self.file, f"{self.where}.{field}", problem)

    def one_of(self, field: str, values: Sequence[Any], default: Any = None) -> Any:
        """Return a field. Raises `CheckpointError` for a value that is not one of `values`."""
        value = self.fields.get(field, default)
        if not any(value == each and type(value) is type(each) for each in values):
            raise self.error(field, f"{value!r} is not supported, only {' or '.join(map(repr, values))}")
        return value

    def inner(self, field: str) -> "_Plan | None":
        """Return an object within; None where there is none. Raises `CheckpointError` for another value."""
        value = self.fields.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(field, "is not an object")
        return _Plan(self.file, f"{self.where}.{field}", value)

    def set_fields(self, *fields: str) -> tuple[str, ...]:
        """Return those of `fields` that have a value."""
        return tuple(field for field in fields if self.fields.get(field))


def parse_low_bits(file: Path, config: Mapping[str, Any]) -> LowBits | None:
    """Read `quantization_config`; None where it has none of the methods in `METHODS`.

    Raises `CheckpointError` with the name of a field whose value is not supported.
    """
    fields = config.get("quantization_config")
    if config.get("quantization") or not isinstance(fields, dict):
        return None
    parse = METHODS.get(str(fields.get("quant_method")))
    return None if parse is None else parse(_Plan(file, "quantization_config", fields))


def _fp8(plan: _Plan) -> LowBits:
    plan.one_of("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    plan.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
    block = _block(plan, "weight_block_size")
    layouts = [Fp8Layout(block, scale) for scale in ("weight_scale_inv", "weight_scale")]
    return LowBits("fp8", layouts, ("activation_scheme",))


def _block(plan: _Plan, field: str) -> Shape | None:
    sizes = plan.fields.get(field)
    if sizes is None:
        return None
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise plan.error(field, f"{sizes!r} is not two positive integers")
    return sizes[0], sizes[1]


def _compressed_tensors(plan: _Plan) -> LowBits:
    format = plan.one_of("format", tuple(_FORMATS))
    plan.one_of("quantization_status", ("compressed", "COMPRESSED"), "compressed")
    for field in ("sparsity_config", "transform_config"):
        other = plan.inner(field)
        if other is not None and other.fields and other.fields.get("format") != "dense":
            raise plan.error(field, "is not supported: sparse or rotated weights are not read")
    layouts: list[LowBitLayout] = []
    ignored = plan.set_fields("kv_cache_scheme")
    groups = plan.inner("config_groups")
    for name in () if groups is None else groups.fields:
        assert groups is not None  # it has names
        group = groups.inner(name)
        weights = None if group is None else group.inner("weights")
        if group is None or weights is None:
            raise groups.error(f"{name}.weights", "is missing")
        if group.fields.get("format") is not None:
            group.one_of("format", (format,))
        layouts.append(_FORMATS[format](weights))
        ignored += group.set_fields("input_activations", "output_activations")
    if not layouts or any(layout != layouts[0] for layout in layouts):
        raise plan.error("config_groups", f"has {len(layouts)} groups, not one kind of weights")
    return LowBits("compressed-tensors", layouts[:1], tuple(dict.fromkeys(ignored)))


def _weights(plan: _Plan, kind: str, bits: Sequence[int], strategies: Sequence[str], symmetric: Sequence[bool]) -> int:
    """Check what all formats of compressed-tensors state of weights; return the bits."""
    plan.one_of("type", (kind,), "int")
    plan.one_of("strategy", strategies)
    plan.one_of("symmetric", symmetric, True)
    plan.one_of("dynamic", (False,), False)
    plan.one_of("actorder", (None, False, "static", "weight", "group", "dynamic"))  # g_idx is checked when it is read
    return int(plan.one_of("num_bits", bits))


def _integers(plan: _Plan, *, packed: bool) -> LowBitLayout:
    bits = _weights(plan, "int", INTEGER_BITS, ("tensor", "channel", "group"), (True, False) if packed else (True,))
    group = _group(plan) if plan.fields["strategy"] == "group" else None
    return IntegerLayout(bits, group, plan.fields.get("symmetric", True), packed)


def _group(plan: _Plan) -> int:
    size = plan.fields.get("group_size")
    if type(size) is not int or size <= 0:
        raise plan.error("group_size", f"{size!r} is not a positive integer")
    return size


def _floats(plan: _Plan) -> LowBitLayout:
    _weights(plan, "float", (8,), ("tensor", "channel", "block"), (True,))
    if plan.fields["strategy"] != "block":
        return Fp8Layout(None)
    block = _block(plan, "block_structure")
    if block is None:
        raise plan.error("block_structure", "is missing")
    return Fp8Layout(block)


def _mxfp4(plan: _Plan) -> LowBitLayout:
    _weights(plan, "float", (4,), ("group",), (True,))
    plan.one_of("group_size", (MX_GROUP,))
    return Mxfp4Layout()


def _nvfp4(plan: _Plan) -> LowBitLayout:
    _weights(plan, "float", (4,), ("tensor_group",), (True,))
    plan.one_of("group_size", (NV_GROUP,))
    return Nvfp4Layout()


_FORMATS: Mapping[str, Callable[[_Plan], LowBitLayout]] = {
    "pack-quantized": lambda plan: _integers(plan, packed=True),
    "int-quantized": lambda plan: _integers(plan, packed=False),
    "float-quantized": _floats,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
}
"""Formats of compressed-tensors."""


def _modelopt(plan: _Plan) -> LowBits:
    algorithm = plan.one_of("quant_algo", ("FP8", "NVFP4"))
    layout: LowBitLayout = Fp8Layout()
    if algorithm == "NVFP4":
        plan.one_of("group_size", (NV_GROUP,), NV_GROUP)
        layout = Nvfp4Layout(".weight", ".weight_scale_2", divides=False)
    return LowBits("modelopt", [layout], ("activations", *plan.set_fields("kv_cache_scheme", "kv_cache_quant_algo")))


def _bitsandbytes(plan: _Plan) -> LowBits:
    four, eight = (plan.one_of(f"load_in_{bits}bit", (True, False), False) for bits in (4, 8))
    if four == eight:
        raise plan.error("load_in_4bit", f"is {four}, and load_in_8bit is {eight}: one must be true")
    if eight:
        return LowBits("bitsandbytes", [Int8RowsLayout()])
    plan.one_of("bnb_4bit_quant_storage", ("uint8",), "uint8")
    return LowBits("bitsandbytes", [Table4Layout(plan.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4"))])


METHODS: Mapping[str, Callable[[_Plan], LowBits]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": lambda plan: LowBits("mxfp4", [StackedMxfp4Layout()]),
}
"""Readers of `quantization_config`, by its `quant_method`."""
