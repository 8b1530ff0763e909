"""The graphs of a tower: each computes one block of patches, with the weights of a layer among its inputs, so that all
layers share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workers.iree.build.lower import Graph, lower_module, struct
from workers.iree.build.source_digest import source_digest
from workers.iree.lazy_jax import ArraySpec, jax, jax_versions
from workers.iree.model.ops import RopeAngles, Shape
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.tower.attention import PlainAttention, TiledAttention
from workers.iree.model.tower.layout import TowerLayout, TowerParameter
from workers.iree.model.tower.tower import TowerParts
from workers.vision.config import VisionConfig

TOWER = "tower"
"""The first part of the names of a tower's graphs."""
BLOCK = 128
"""The most patches of a call: so many that weights are read often enough from the caches, and few enough that a part of
the work takes some milliseconds."""
MULTIPLE = 8
"""Patches of a call are a multiple of this."""
MOST_PATCHES = 1 << 16
"""The most patches of an image. Memory of keys and values costs nothing until it is written."""
PLAIN_PATCHES = (1 << 12, 1 << 14)
"""Capacities of devices that attend to the whole of one: an image has the graphs of the smallest with room for it."""


@dataclass(frozen=True, slots=True)
class TowerGraphs:
    """The graphs of a vision tower on one device."""

    config: VisionConfig
    ops: TiledOps | PlainOps

    @classmethod
    def of(cls, config: VisionConfig, ops: TiledOps | PlainOps) -> TowerGraphs:
        """Return the graphs for a device, with the padding of the tower in place of the language model's."""
        layout = TowerLayout.of(config, ops)
        own = replace(ops, padding=layout.padding, bodies={}) if isinstance(ops, TiledOps) else ops
        return cls(config, own)

    @property
    def layout(self) -> TowerLayout:
        return TowerLayout.of(self.config, self.ops)

    @property
    def names(self) -> tuple[str, ...]:
        """The graphs, all in one module."""
        taps = (f"{TOWER}_tap",) if self.config.taps else ()
        layers = [f"{TOWER}_{name}" for capacity in self._attended for name in self.of_layer(capacity)]
        return (f"{TOWER}_embed", *layers, f"{TOWER}_merge", *taps)

    @property
    def block(self) -> int:
        """Patches of a call: whole groups."""
        step = self.config.group
        while step % MULTIPLE:
            step += self.config.group
        return max(1, BLOCK // step) * step

    @property
    def capacities(self) -> tuple[int, ...]:
        """The numbers of patches that may attend to each other, in rising order. Tiles that attend to themselves alone
        are computed in runs of the least."""
        if isinstance(self.ops, TiledOps):
            return (MOST_PATCHES,)
        return PLAIN_PATCHES[:1] if self.config.tiles else PLAIN_PATCHES

    @property
    def max_patches(self) -> int:
        """The most patches of an image."""
        most, (rows, columns) = self.capacities[-1], self.config.table or (0, 0)
        return MOST_PATCHES if self.config.tiles and rows * columns <= most else most

    def attention(self, capacity: int) -> TiledAttention | PlainAttention:
        """Return the attention of a layer."""
        kind = TiledAttention if isinstance(self.ops, TiledOps) else PlainAttention
        return kind(self.layout, self.ops, self.block, capacity)  # type: ignore[arg-type]

    def of_layer(self, capacity: int) -> tuple[str, str]:
        """Return the names of the graphs of a layer, without `TOWER`."""
        end = "" if capacity == self.capacities[0] else f"_{capacity}"
        return f"keys{end}", f"layer{end}"

    @property
    def _attended(self) -> tuple[int, ...]:
        return self.capacities if self.config.layers else ()

    def weights_of(self, parameter: TowerParameter) -> tuple[Shape, str]:
        """Return shape and type of a parameter as graphs take it."""
        if not parameter.matrix:
            return parameter.padded, "float32"
        outputs, inputs = parameter.padded
        return self.ops.stored_shape(outputs, inputs), self.ops.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        total = 0
        for _, parameters in self.layout.places():
            for parameter in parameters:
                shape, dtype = self.weights_of(parameter)
                size = 4 if dtype == "float32" else 2
                for length in shape:
                    size *= length
                total += size
        return total

    def describe(self) -> str:
        """Return everything that the text of the module depends on."""
        return "\n".join([*self.names, repr(self), *jax_versions(), source_digest(__name__)])

    def module(self) -> str:
        """Return the MLIR of the module."""
        tower = TowerParts(self.layout, self.attention(self.capacities[0]))
        layers = [graph for capacity in self._attended for graph in self._graphs_of_layer(capacity)]
        graphs = [self._embed(tower), *layers, self._merge(tower)]
        graphs += [self._tap(tower)] if self.config.taps else []
        return lower_module(graphs, {}, self.ops.bodies if isinstance(self.ops, TiledOps) else {})

    def _embed(self, tower: TowerParts) -> Graph:
        """Values of patches and what is added to their embeddings -> rows."""
        inputs = (struct((self.block, self.layout.inputs.padded), "float32"), self._rows)
        return self._graph(
            "embed", lambda values, w: (tower.embed(values[0], values[1], w),), inputs, self.layout.patch()
        )

    def _graphs_of_layer(self, capacity: int) -> tuple[Graph, Graph]:
        attention, (keys, layer) = self.attention(capacity), self.of_layer(capacity)
        tower, kv = TowerParts(self.layout, attention), struct(attention.cache, self.ops.dtype)
        return self._keys(keys, tower, kv), self._layer(layer, tower, kv)

    def _keys(self, name: str, tower: TowerParts, kv: ArraySpec) -> Graph:
        """Rows (, cosines and sines), places, keys and values -> queries, keys and values."""
        angles = (struct((self.block, self.layout.angles), "float32"),) * (2 if self.layout.angles else 0)
        inputs = (self._rows, *angles, struct((1, self.block), "int32"), kv)

        def keys(values: Sequence[jax.Array], w: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
            x, *turned, rows, kv = values
            return tower.keys(x, RopeAngles(*turned) if turned else None, rows, kv, w)

        return self._graph(name, keys, inputs, self.layout.keys(), ((len(inputs) - 1, 1),))

    def _layer(self, name: str, tower: TowerParts, kv: ArraySpec) -> Graph:
        """Rows, queries, keys and values, ranges -> rows."""
        inputs = (self._rows, self._queries, kv, struct((2, 1, self.block), "int32"))

        def layer(values: Sequence[jax.Array], w: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
            x, queries, kv, ranges = values
            return (tower.layer(x, queries, kv, ranges, w),)

        return self._graph(name, layer, inputs, self.layout.layer())

    def _merge(self, tower: TowerParts) -> Graph:
        """Rows after the last layer -> tokens."""
        last = self.layout.last()

        def merge(values: Sequence[jax.Array], w: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
            mine = {name.removeprefix("last."): each for name, each in w.items() if name.startswith("last.")}
            return (tower.merge(values[0], self.config.merger, w, mine),)

        named = [replace(each, name=f"last.{each.name}") for each in last]
        return self._graph("merge", merge, (self._rows,), [*named, *self.layout.merger(self.config.merger)])

    def _tap(self, tower: TowerParts) -> Graph:
        """Rows after a layer of the deep stack -> tokens."""
        merger = self.config.tap_merger
        assert merger is not None, "a tower with taps has one"
        parameters = self.layout.merger(merger)
        return self._graph("tap", lambda values, w: (tower.merge(values[0], merger, w, {}),), (self._rows,), parameters)

    def _graph(
        self,
        name: str,
        function: Callable[[Sequence[jax.Array], dict[str, jax.Array]], tuple[jax.Array, ...]],
        inputs: tuple[ArraySpec, ...],
        parameters: Sequence[TowerParameter],
        in_place: tuple[tuple[int, int], ...] = (),
    ) -> Graph:
        """Return a graph whose inputs are followed by its parameters."""
        names = [each.name for each in parameters]

        def call(*values: Any) -> tuple[jax.Array, ...]:
            given = dict(zip(names, values[len(inputs) : -1], strict=True))
            return function(values[: len(inputs)], given)

        weights = tuple(struct(*self.weights_of(each)) for each in parameters)
        return Graph(f"{TOWER}_{name}", call, (*inputs, *weights), in_place=in_place, pure=True)

    @property
    def _rows(self) -> ArraySpec:
        return struct((self.block, self.layout.hidden), "float32")

    @property
    def _queries(self) -> ArraySpec:
        width = self.config.heads * self.layout.lanes
        if isinstance(self.ops, TiledOps):
            return struct((self.block, width // self.ops.arithmetic.per_word), "int32")
        return struct((self.block, width), self.ops.dtype)
