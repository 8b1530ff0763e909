"""`VisionEncoder` on IREE: an image is computed one block of patches after the other, layer by layer."""

from collections.abc import Generator, Iterator, Sequence
from weakref import WeakSet

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import NotFiniteError
from workers.iree.build.tower_graphs import TOWER, TowerGraphs
from workers.iree.device.buffers import DeviceBuffer
from workers.iree.device.device import Device, Module
from workers.iree.model.tower.layout import Parameters, TowerParameter
from workers.load_options import Progress
from workers.vision import positions
from workers.vision.config import Merger
from workers.vision.encoder import ImageEncoding
from workers.vision.patches import ImagePatches

Floats = NDArray[np.float32]
Views = list[rt.HalBufferView]


class IreeVision:
    """Implements `VisionEncoder`. Owned by the runner; used only by its thread."""

    def __init__(
        self,
        device: Device,
        graphs: TowerGraphs,
        module: Module,
        parameters: Parameters,
        divisor: float | np.float32 = 1.0,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        """`parameters` have canonical names and are read once. The language model multiplies rows of embeddings by
        `divisor`, as those of its table: the rows of images are divided by it."""
        self.config, self.graphs, self._device, self._module = graphs.config, graphs, device, module
        self._divisor = np.float32(divisor)
        layout, config = graphs.layout, graphs.config
        read = [name for name in positions.HOST if name in parameters]
        self._host = {name: np.asarray(parameters[name], np.float32) for name in read}
        """The parameters that positions are computed of."""
        self.newline = self._host.get(positions.NEWLINE)
        """The embedding at the end of a row of a packed grid."""
        self.nbytes = graphs.nbytes + sum(each.nbytes for each in self._host.values())
        self._open = 0
        """Bytes of the computations that are open."""
        self._encodings: WeakSet[_Encoding] = WeakSet()
        """Those that may be open."""

        def put(prefix: str, wanted: Sequence[TowerParameter]) -> Views:
            return [self._weight(prefix, each, parameters) for each in wanted]

        self.patch = put("", layout.patch())
        self.keys: list[Views]
        self.layers: list[Views]
        layers = [f"layers.{number}." for number in range(config.layers)]
        self.keys, self.layers = [], []
        for number, layer in enumerate(layers):
            progress("pack vision weights", number, len(layers))
            self.keys.append(put(layer, layout.keys()))
            self.layers.append(put(layer, layout.layer()))
        progress("pack vision weights", len(layers), len(layers))
        self.merger = [*put("", layout.last()), *put("merger.", layout.merger(config.merger))]
        self.taps = [put(f"taps.{number}.", layout.merger(_tap(graphs))) for number in range(len(config.taps))]

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def max_patches(self) -> int:
        return self.graphs.max_patches

    def begin(self, image: ImagePatches) -> ImageEncoding:
        count, config = len(image.values), self.config
        if not 0 < count <= self.max_patches:
            raise ValueError(f"patches: {count}, the tower takes 1 to {self.max_patches} of an image")
        if count % config.group or image.values.shape[1] != config.patch_values:
            shape = list(image.values.shape)
            raise ValueError(f"patches: {shape} are no groups of {config.group} with {config.patch_values} values each")
        if not image.fits(count // config.group):
            raise ValueError(f"tokens: {image.count} of {count} patches, {config.group} of which make one")
        windowed = config.full_layers is not None and len(config.full_layers) < config.layers
        if windowed and image.windows is None:
            raise ValueError("windows: the tower has layers that attend within them")
        positions.check(config, image)
        encoding = _Encoding(self, image, image.runs(self.graphs.capacities[-1]) if config.tiles else [image])
        self._encodings.add(encoding)
        return encoding

    def memory(self) -> dict[str, int]:
        return {"vision_weights": self.nbytes, "vision_buffers": self._open}

    def close(self) -> None:
        """Release the weights and what is being computed, before the device is closed: the runtime's buffers do not
        keep their device, and one that is released after it crashes the process."""
        for encoding in list(self._encodings):
            encoding.close()
        del self.patch, self.keys, self.layers, self.merger, self.taps, self._module

    def added(self, image: ImagePatches) -> Floats | None:
        """Return what is added to the embeddings of patches: see `positions.added`."""
        return positions.added(self.config, self._host, image)

    def call(self, name: str, *arguments: rt.HalBufferView) -> Views:
        """Run one of the graphs."""
        return list(self._module.call(f"{TOWER}_{name}", *arguments))

    def upload(self, values: NDArray[np.generic]) -> rt.HalBufferView:
        return self._device.upload(values)

    def download(self, view: rt.HalBufferView) -> Floats:
        found: Floats = self._device.download(view)
        return found

    def cache(self, capacity: int) -> DeviceBuffer:
        """Allocate the keys and values of an image's patches in one layer."""
        return self._device.zeros(self.graphs.attention(capacity).cache, self.graphs.ops.dtype)

    def hold(self, nbytes: int) -> None:
        """Count memory of a computation; negative when it is released."""
        self._open += nbytes

    def scaled(self, rows: Floats) -> Floats:
        """Return rows of embeddings as the language model takes them."""
        if self._divisor != 1:
            rows[:, : self.config.output] /= self._divisor
        return rows

    def _weight(self, prefix: str, parameter: TowerParameter, parameters: Parameters) -> rt.HalBufferView:
        dtype, ops = self.graphs.weights_of(parameter)[1], self.graphs.ops
        values = parameter.values(prefix, parameters, ops.dtype)
        packed = ops.store(values) if parameter.matrix else values
        bits = packed.view(np.uint16) if packed.dtype.itemsize == 2 else packed
        return self._device.upload(bits, dtype)


def _tap(graphs: TowerGraphs) -> Merger:
    assert graphs.config.tap_merger is not None, "a tower with taps has one"
    return graphs.config.tap_merger


class _Encoding:
    """Implements `ImageEncoding`: one call of a graph is a part of the work.

    It is closed by `close`, by that of the tower, or when it is dropped, whichever comes first: always while the device
    still exists.
    """

    _steps: Generator[None] | None = None

    def __init__(self, tower: IreeVision, image: ImagePatches, runs: Sequence[ImagePatches]) -> None:
        """`runs` are computed one after the other: their patches attend to no others."""
        self._tower, self._image, self._runs = tower, image, runs
        config, extra = tower.config, int(tower.config.extra)
        blocks = [-(-(len(each.values) + extra) // tower.graphs.block) for each in runs]
        self.parts = sum(blocks) * (2 + 2 * config.layers + len(config.taps))
        """See `ImageEncoding.parts`."""
        itemsize = 4 if tower.graphs.ops.dtype == "float32" else 2
        width = 2 * (4 + itemsize) * tower.graphs.layout.hidden
        self._nbytes = max(blocks) * tower.graphs.block * width
        tower.hold(self._nbytes)
        self._tokens: list[list[Floats]] = [[] for _ in range(1 + len(config.taps))]
        """The rows of each part of the embeddings, by block."""
        self._done = 0
        self._steps = self._compute()

    def advance(self) -> bool:
        assert self._steps is not None, "advanced after it was closed"
        next(self._steps)
        self._done += 1
        return self._done == self.parts

    def rows(self) -> Floats:
        whole = np.concatenate([np.concatenate(blocks) for blocks in self._tokens], axis=1)
        if not np.isfinite(whole).all():
            raise NotFiniteError
        return self._tower.scaled(self._image.arranged(whole, self._tower.newline))

    def close(self) -> None:
        if (steps := self._steps) is not None:
            self._steps = None
            steps.close()  # what it holds of the device is released here, not with the last reference to it
            self._tower.hold(-self._nbytes)

    def __del__(self) -> None:
        self.close()

    def _compute(self) -> Generator[None]:
        """Compute the image, one call after each `next`."""
        for image in self._runs:
            yield from _PatchRun(self._tower, image, self._tokens).compute()


class _PatchRun:
    """Patches that attend to no others: those of an image, or of some of its tiles."""

    def __init__(self, tower: IreeVision, image: ImagePatches, tokens: Sequence[list[Floats]]) -> None:
        """The rows are appended to `tokens`, for each part of the embeddings."""
        self._tower, self._image, self._tokens = tower, image, tokens
        self._values, self._added = positions.values(tower.config, image), tower.added(image)
        self._angles = positions.angles(tower.config, image)
        self._starts = range(0, len(self._values), tower.graphs.block)

    def compute(self) -> Iterator[None]:
        """Compute the rows, one call after each `next`."""
        tower, config = self._tower, self._tower.config
        rows: Views = []
        for start in self._starts:
            rows += tower.call("embed", *self._embedded(start), *tower.patch)
            yield
        if config.layers:
            yield from self._through_layers(rows)
        yield from self._merged("merge", rows, tower.merger, 0)

    def _through_layers(self, rows: Views) -> Iterator[None]:
        """Replace blocks of rows by those after the last layer."""
        tower, config = self._tower, self._tower.config
        capacity = next(each for each in tower.graphs.capacities if each >= len(self._image.values))
        keys, finish = tower.graphs.of_layer(capacity)
        cache = tower.cache(capacity)  # the host's memory, which the view does not keep
        kv, angles = cache.view, [self._turned(start) for start in self._starts]
        places = [
            tower.upload(np.arange(start, start + tower.graphs.block, dtype=np.int32)[None]) for start in self._starts
        ]
        full, windowed = self._ranges(None), self._ranges(self._image.windows)
        for layer in range(config.layers):
            queries: Views = []
            for x, turned, place in zip(rows, angles, places, strict=True):
                queries.append(tower.call(keys, x, *turned, place, kv, *tower.keys[layer])[0])
                yield
            ranges = full if config.full_layers is None or layer in config.full_layers else windowed
            for number, seen in enumerate(ranges):
                (rows[number],) = tower.call(finish, rows[number], queries[number], kv, seen, *tower.layers[layer])
                yield
            for tap in (number for number, each in enumerate(config.taps) if each == layer):
                yield from self._merged("tap", rows, tower.taps[tap], 1 + tap)

    def _merged(self, name: str, rows: Views, weights: Views, part: int) -> Iterator[None]:
        left = len(self._image.values) // self._tower.config.group
        for x in rows:
            (made,) = self._tower.call(name, x, *weights)
            tokens = self._tower.download(made)[:left]
            self._tokens[part].append(tokens)
            left -= len(tokens)
            yield

    def _embedded(self, start: int) -> tuple[rt.HalBufferView, rt.HalBufferView]:
        """Return the values of a block of patches, and what is added to their embeddings."""
        layout = self._tower.graphs.layout
        return (
            self._padded(self._values[start:], layout.inputs.padded),
            self._padded(np.zeros((0, 0), np.float32) if self._added is None else self._added[start:], layout.hidden),
        )

    def _turned(self, start: int) -> Sequence[rt.HalBufferView]:
        """Return cosines and sines of the angles of a block; nothing without RoPE."""
        if self._angles is None:
            return ()
        width, mine = self._tower.graphs.layout.angles, self._angles[start : start + self._tower.graphs.block]
        return [self._padded(turn(mine), width) for turn in (np.cos, np.sin)]

    def _padded(self, values: Floats, width: int) -> rt.HalBufferView:
        block = self._tower.graphs.block
        out = np.zeros((block, width), np.float32)
        mine = values[:block]
        out[: mine.shape[0], : mine.shape[1]] = mine
        return self._tower.upload(out)

    def _ranges(self, windows: NDArray[np.int32] | None) -> Views:
        """Return the first and the last patch that each patch of a block sees. Those behind the image see what its last
        patch does."""
        count, block = len(self._values), self._tower.graphs.block
        if windows is None:
            firsts, lasts = np.zeros(count, np.int32), np.full(count, count - 1, np.int32)
        else:
            firsts = np.searchsorted(windows, windows, "left").astype(np.int32)
            lasts = (np.searchsorted(windows, windows, "right") - 1).astype(np.int32)
        whole = np.stack([firsts, lasts])
        whole = np.pad(whole, ((0, 0), (0, -count % block)), mode="edge")
        return [self._tower.upload(whole[:, None, start : start + block]) for start in self._starts]
