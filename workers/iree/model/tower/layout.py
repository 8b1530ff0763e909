"""The parameters of a tower as its graphs take them: stacked, padded to whole vectors, and packed.

Zeros are added to widths that are not whole vectors, as in a language model (`workers.iree.model.width_padding`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.model.ops import Shape
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import PaddedAxis, WidthPadding
from workers.vision.config import Merger, VisionConfig
from workers.vision.parameters import embedding_norms

Axis = PaddedAxis | None
Parameters = Mapping[str, NDArray[Any]]
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CLIPPED = ("q", "k", "v", "o", "up", "gate", "down")
"""The matrices whose inputs and outputs are clipped where `VisionConfig.clipped` is set."""


@dataclass(frozen=True, slots=True)
class TowerParameter:
    """One input of a tower's graphs."""

    name: str
    """Within its layer or merger."""
    sources: tuple[str, ...]
    """The canonical names, within the same; stacked along the outputs."""
    shape: Shape
    """The shape of one source."""
    axes: tuple[Axis, ...] = ()
    """The padding of each axis; empty for none."""

    @property
    def matrix(self) -> bool:
        """It is stored by `Ops.store`, in the type of the model; others are float32 vectors."""
        return len(self.shape) == 2

    @property
    def padded(self) -> Shape:
        """The shape of all sources together, padded."""
        sizes = [size if axis is None else axis.total(size) for size, axis in zip(self.shape, self._axes, strict=True)]
        return (len(self.sources) * sizes[0], *sizes[1:])

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return self.axes or (None,) * len(self.shape)

    def values(self, prefix: str, parameters: Parameters, dtype: str) -> NDArray[Any]:
        """Return the padded values of a layer's parameter: `dtype` [outputs, inputs], or float32 [size]."""
        kind = TYPES[dtype] if self.matrix else np.float32
        parts = []
        for source in self.sources:
            values = np.asarray(parameters[prefix + source]).astype(kind, copy=False).reshape(self.shape)
            for number, axis in enumerate(self._axes):
                values = values if axis is None else axis.pad(values, number)
            parts.append(values)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class TowerLayout:
    """The widths of a tower with their padding, and its parameters by the part that they belong to."""

    config: VisionConfig
    padding: WidthPadding | None
    """None on devices that take any width."""
    inputs: PaddedAxis = field(init=False)
    """Numbers of a patch."""

    def __post_init__(self) -> None:
        config, padded = self.config, self.padding is not None
        axis = PaddedAxis.whole(config.patch_values) if padded else PaddedAxis(((config.patch_values,) * 2,))
        object.__setattr__(self, "inputs", axis)

    @classmethod
    def of(cls, config: VisionConfig, ops: TiledOps | PlainOps) -> "TowerLayout":
        """Return the layout for a device."""
        return cls(config, tower_padding(config) if isinstance(ops, TiledOps) else None)

    @property
    def hidden(self) -> int:
        """The padded hidden size."""
        return self.config.hidden if self.padding is None else self.padding.hidden.padded

    @property
    def mlp(self) -> int:
        """The padded width of the MLP."""
        return self.config.mlp if self.padding is None else self.padding.ffn.padded

    @property
    def lanes(self) -> int:
        """The padded lanes of a head."""
        return self.config.head_dim if self.padding is None else self.padding.head.padded

    @property
    def angles(self) -> int:
        """The padded number of angles of a patch; 0 without RoPE."""
        if not self.config.rope_theta:
            return 0
        return self.config.head_dim // 2 if self.padding is None else self.padding.head.parts[0][1]

    def patch(self) -> list[TowerParameter]:
        """Return the parameters of the patch embedding."""
        config = self.config
        out = list(self._linear("patch", ("patch",), config.hidden, config.patch_values, "hidden", "inputs"))
        if config.patch_bias and not config.biases:
            out.append(TowerParameter("patch_bias", ("patch.bias",), (config.hidden,), (self._axis("hidden"),)))
        for name, kind in embedding_norms(config).items():
            size = (config.patch_values if name == "values_norm" else config.hidden,)
            out += _plain_norm(name, name, size, kind)
        return out

    def keys(self) -> list[TowerParameter]:
        """Return those of a layer up to the queries, keys and values."""
        config, lanes = self.config, self.config.heads * self.config.head_dim
        out = list(self._norm("norm1"))
        stacks = [(name, (name,)) for name in "qkv"] if config.clipped else [("qkv", ("q", "k", "v"))]
        for name, sources in stacks:
            out += self._linear(name, sources, lanes, config.hidden, "head", "hidden")
        out += self._clips("qkv")
        if config.qk_norm:
            head = (self._axis("head"),)
            out += [TowerParameter(f"{each}_norm", (f"{each}_norm.weight",), (config.head_dim,), head) for each in "qk"]
        return out

    def layer(self) -> list[TowerParameter]:
        """Return the others of a layer."""
        config, lanes = self.config, self.config.heads * self.config.head_dim
        out = [*self._linear("o", ("o",), config.hidden, lanes, "hidden", "head"), *self._norm("norm2")]
        stacks: list[tuple[str, tuple[str, ...]]] = [("up", ("up",))]
        if config.gated:
            stacks = [("gate", ("gate",)), *stacks] if config.clipped else [("gate_up", ("gate", "up"))]
        for name, sources in stacks:
            out += self._linear(name, sources, config.mlp, config.hidden, "ffn", "hidden")
        out += self._linear("down", ("down",), config.hidden, config.mlp, "hidden", "ffn")
        out += self._clips(("o", "gate", "up", "down") if config.gated else ("o", "up", "down"))
        if config.sandwich:
            out += [self._vector(name, f"{name}.weight") for name in ("post1", "post2")]
        return out

    def last(self) -> list[TowerParameter]:
        """Return those of the last norm and of the standardization: of patches that are merged into tokens."""
        config, size = self.config, (self.config.hidden,)
        out = []
        if config.last_norm:
            out += [TowerParameter("norm", ("norm.weight",), size)]
            out += [TowerParameter("norm_bias", ("norm.bias",), size)] if config.norm == "layer" else []
        if config.standardize:
            out += [TowerParameter(f"standard_{name}", (f"standard.{name}",), size) for name in ("bias", "scale")]
        return out

    def merger(self, merger: Merger) -> list[TowerParameter]:
        """Return those of a merger."""
        config, out = self.config, []
        width = config.hidden * (config.group if merger.pooling == "concat" else 1)
        if merger.norm is not None:
            size = (config.hidden if merger.norm_each else width,)
            out += [TowerParameter("norm", ("norm.weight",), size)]
            out += [TowerParameter("norm_bias", ("norm.bias",), size)] if merger.norm == "layer" else []
        for number, mix in enumerate(merger.mixes):
            out += self._merging(f"mix_{number}", (f"mix.{number}",), mix.outputs, width, mix.bias)
            width = mix.outputs
            if mix.norm is not None:
                out += _plain_norm(f"mix_{number}_norm", f"mix.{number}.norm", (width,), mix.norm)
        if merger.inner:
            name, sources = ("gate_up", ("gate", "up")) if merger.gated else ("up", ("up",))
            out += self._merging(name, sources, merger.inner, width, merger.biases)
        return out + self._merging("down", ("down",), config.output, merger.inner or width, merger.biases)

    def _merging(
        self, name: str, sources: tuple[str, ...], outputs: int, inputs: int, bias: bool
    ) -> list[TowerParameter]:
        axes = (self._whole(outputs), self._whole(inputs))
        out = [TowerParameter(name, tuple(f"{each}.weight" for each in sources), (outputs, inputs), axes)]
        if bias:
            out.append(TowerParameter(f"{name}_bias", tuple(f"{each}.bias" for each in sources), (outputs,), axes[:1]))
        return out

    def places(self) -> Iterator[tuple[str, list[TowerParameter]]]:
        """List the parameters of the whole tower by the prefix of their canonical names."""
        config = self.config
        yield "", self.patch()
        for number in range(config.layers):
            yield f"layers.{number}.", [*self.keys(), *self.layer()]
        yield "", self.last()
        yield "merger.", self.merger(config.merger)
        if config.tap_merger is not None:
            for number in range(len(config.taps)):
                yield f"taps.{number}.", self.merger(config.tap_merger)

    def _linear(
        self, name: str, sources: tuple[str, ...], outputs: int, inputs: int, out_axis: str, in_axis: str
    ) -> Iterator[TowerParameter]:
        axes = (self._axis(out_axis), self._axis(in_axis))
        yield TowerParameter(name, tuple(f"{each}.weight" for each in sources), (outputs, inputs), axes)
        if self.config.biases:
            yield TowerParameter(f"{name}_bias", tuple(f"{each}.bias" for each in sources), (outputs,), axes[:1])

    def _norm(self, name: str) -> Iterator[TowerParameter]:
        yield self._vector(name, f"{name}.weight")
        if self.config.norm == "layer":
            yield self._vector(f"{name}_bias", f"{name}.bias")

    def _vector(self, name: str, source: str) -> TowerParameter:
        return TowerParameter(name, (source,), (self.config.hidden,), (self._axis("hidden"),))

    def _clips(self, names: str | tuple[str, ...]) -> list[TowerParameter]:
        if not self.config.clipped:
            return []
        return [TowerParameter(f"{name}_clip", (f"{name}.clip",), (4,)) for name in names]

    def _axis(self, name: str) -> Axis:
        if self.padding is None:
            return None
        return {
            "hidden": self.padding.hidden,
            "head": self.padding.head,
            "ffn": self.padding.ffn,
            "inputs": self.inputs,
        }[name]

    def _whole(self, size: int) -> Axis:
        return None if self.padding is None else PaddedAxis.whole(size)


def _plain_norm(name: str, source: str, size: Shape, kind: str) -> list[TowerParameter]:
    """Return the parameters of a norm that is computed without padding."""
    out = [TowerParameter(name, (f"{source}.weight",), size)]
    return [*out, TowerParameter(f"{name}_bias", (f"{source}.bias",), size)] if kind == "layer" else out


def tower_padding(config: VisionConfig) -> WidthPadding:
    """Return the padding of a tower's widths to whole vectors."""
    half, lanes = config.head_dim // 2, config.head_dim
    if config.rope_theta:
        turned = -(-half // (LANES // 2)) * (LANES // 2)
        head = PaddedAxis(((half, turned), (half, turned)))
    else:
        head = PaddedAxis.whole(lanes)
    return WidthPadding(PaddedAxis.whole(config.hidden), PaddedAxis.whole(config.mlp), (head,), None)
