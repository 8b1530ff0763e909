"""The IREE runner: compiled graphs over one KV cache that never leaves the device."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.affinity import usable_cores
from workers.checkpoint import ModelConfig
from workers.iree.archive import as_arrays, open_archive
from workers.iree.compiler import Compiler
from workers.iree.device import Cpu, Device, Module, Resident
from workers.iree.graphs import Plan, decode_buckets, prefill_chunks
from workers.iree.kv import HostKv
from workers.iree.lower import SCOPE
from workers.iree.model import rope_frequencies
from workers.iree.ops import Cache, PlainOps, TiledOps
from workers.iree.tiles import tiles_for
from workers.runner import Chunk, Draw, NotFiniteError, Row, RunnerCapabilities, check_chunks, check_copy
from workers.sampling import needs_filters, needs_sampling, parameters
from workers.spec import Dtype

Progress = Callable[[str, int, int], None]
PLAIN_TILE = 16
"""Rows to which the plain cache's capacity is rounded."""


class IreeRunner:
    """`workers.runner.Runner` on IREE. Owns the device and the cache; used only by the thread that loaded it."""

    def __init__(
        self, plan: Plan, device: Device, compiler: Compiler, weights: rt.ParameterIndex, nbytes: int, context: int
    ) -> None:
        self._plan = plan
        self._cache = plan.cache
        self._device = device
        self._compiler = compiler
        self._weights = weights
        self._weight_bytes = nbytes
        self._modules: dict[str, Module] = {}
        self._kv = device.zeros(plan.cache.shape, plan.ops.dtype)
        self._host_kv = host_kv(plan, self._kv)
        self._written = [0] * plan.cache.slots
        self._tile = plan.cache.tile
        self._angles = Angles(rope_frequencies(plan.config), context)
        self.capabilities = RunnerCapabilities(
            backend="iree",
            device=device.uri,
            dtype=plan.ops.dtype,
            slots=plan.cache.slots,
            context=context,
            vocab_size=plan.config.vocab_size,
            prefill_chunks=plan.chunks,
            exact_rows=isinstance(plan.ops, TiledOps),
            row_bytes=self._kv.nbytes // (plan.cache.slots * plan.cache.capacity),
        )

    @classmethod
    def load(
        cls,
        path: Path,
        config: ModelConfig,
        *,
        device: str,
        dtype: Dtype,
        slots: int,
        context: int,
        cache_dir: Path,
        threads: int,
        progress: Progress,
    ) -> "IreeRunner":
        """Open the device, pack the weights and compile the graphs, or find both in `cache_dir`.

        `device` is a URI like "local-task", "cuda" or "vulkan://0", empty for the CPU; `context` 0 is the model's;
        `threads` 0 is one a core. `progress` gets (phase, done, total). Raises `CheckpointError`, `DeviceError` and
        `CompileError`.
        """
        context = config.choose_context(context)
        opened = Device(device, threads)
        ops = choose_ops(config, dtype, opened)
        tile = ops.tiles.n if isinstance(ops, TiledOps) else PLAIN_TILE
        cache = Cache.of(config, slots, context, tile)
        # One decode graph where its rows cost next to nothing and kernels may change with their number.
        buckets = decode_buckets(slots) if isinstance(ops, TiledOps) else (slots,)
        plan = Plan(config, ops, cache, as_arrays(config, ops), buckets, prefill_chunks(context))
        compiler = Compiler(cache_dir, opened.compile_flags(), opened.compile_target())
        weights, nbytes = open_archive(path, config, ops, cache_dir, progress)
        runner = cls(plan, opened, compiler, weights, nbytes, context)
        runner._compile_all(threads or usable_cores(), progress)
        return runner

    def prefill(self, chunk: Chunk, draw: Draw | None) -> int | None:
        check_chunks(self.capabilities, self._written.__getitem__, [chunk])
        result: list[rt.HalBufferView] = []
        longest = self._plan.chunks[-1]
        for at in range(0, len(chunk.tokens), longest):
            part = chunk.tokens[at : at + longest]
            size = next(size for size in self._plan.chunks if size >= len(part))
            start, position = chunk.start + at, chunk.position + at
            arguments = self._chunk_inputs(chunk.slot, part, start, position, size)
            result = self._call(f"prefill_{size}", *arguments, len(part) - 1)
        return None if draw is None else self._draw(result, [draw])[0]

    def decode(self, rows: Sequence[Row]) -> list[int]:
        if not rows:
            return []
        chunks = [Chunk(row.slot, (row.token,), row.start, row.position) for row in rows]
        check_chunks(self.capabilities, self._written.__getitem__, chunks)
        batch = next(size for size in self._plan.buckets if size > max(row.slot for row in rows))
        tokens = np.zeros((batch, 1), np.int32)
        places = np.full((batch, 1), self._cache.spare_row, np.int32)
        positions = np.zeros((batch, 1), np.int64)
        for row in rows:
            tokens[row.slot], places[row.slot], positions[row.slot] = row.token, row.start, row.position
            self._written[row.slot] = max(self._written[row.slot], row.start + 1)
        inputs = self._inputs(tokens, positions, places)
        result = self._call(f"decode_{batch}", *inputs, self._tiles(max(row.start for row in rows)))
        draws: list[Draw | None] = [None] * batch
        for row in rows:
            draws[row.slot] = row.draw
        drawn = self._draw(result, draws)
        return [drawn[row.slot] for row in rows]

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        check_chunks(self.capabilities, self._written.__getitem__, [chunk])
        size, parts = self._plan.score_chunk, []
        for at in range(0, len(chunk.tokens), size):
            part = chunk.tokens[at : at + size]
            arguments = self._chunk_inputs(chunk.slot, part, chunk.start + at, chunk.position + at, size)
            logits: NDArray[np.float32] = self._device.download(self._call("score", *arguments)[0])
            parts.append(logits[: len(part)])
        whole = np.concatenate(parts)
        if not np.isfinite(whole.max(axis=-1)).all():
            raise NotFiniteError
        return whole

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        check_copy(self.capabilities, self._written.__getitem__, source, target, length)
        held = self._written[target]
        self._written[target] = max(length, held)  # should the copy fail half-way, a reset clears all of it
        if self._host_kv is None:
            self._call("copy", self._kv.view, source, target, length)
        else:
            if source != target:
                self._host_kv.copy(source, target, length)
            self._host_kv.clear(target, length, held)
        self._written[target] = length

    def reset(self, slot: int) -> None:
        if not 0 <= slot < self._cache.slots:
            raise ValueError(f"slot: {slot} is not one of {self._cache.slots}")
        rows, self._written[slot] = self._written[slot], 0
        if not rows:
            return
        if self._host_kv is None:
            self._call("copy", self._kv.view, slot, slot, 0)
        else:
            self._host_kv.forget(slot, rows)

    def memory(self) -> dict[str, int]:
        """Bytes of the packed weights and of the cache; `allocated` is what the device's allocator has handed out."""
        return {"weights": self._weight_bytes, "kv": self._kv.nbytes, "allocated": self._device.allocated}

    def close(self) -> None:
        self._modules.clear()
        del self._host_kv, self._kv, self._weights
        self._device.close()

    def _tiles(self, row: int) -> int:
        """Tiles of rows that hold every row up to this one."""
        return row // self._tile + 1

    def _chunk_inputs(
        self, slot: int, tokens: Sequence[int], start: int, position: int, size: int
    ) -> list[rt.HalBufferView | int]:
        count = len(tokens)
        padded = np.zeros((1, size), np.int32)
        padded[0, :count] = tokens
        places = np.full((1, size), self._cache.spare_row, np.int32)
        places[0, :count] = np.arange(start, start + count)
        positions = np.zeros((1, size), np.int64)
        positions[0, :count] = np.arange(position, position + count)
        self._written[slot] = max(self._written[slot], start + count)
        return [*self._inputs(padded, positions, places), slot, self._tiles(start + count - 1)]

    def _inputs(self, tokens: NDArray[Any], positions: NDArray[Any], places: NDArray[Any]) -> list[rt.HalBufferView]:
        cos, sin = self._angles.at(positions)
        return [*map(self._device.upload, (tokens, cos, sin, places)), self._kv.view]

    def _draw(self, result: list[rt.HalBufferView], draws: Sequence[Draw | None]) -> list[int]:
        """Tokens of the rows that draw (others are meaningless). Raises `NotFiniteError`."""
        active = [draw for draw in draws if draw is not None]
        if needs_sampling(active):
            drawn = self._sample(result[1], draws, active[0])
        else:
            drawn = self._device.download(result[0]).tolist()
        if any(token < 0 for token, draw in zip(drawn, draws, strict=True) if draw is not None):
            raise NotFiniteError
        return drawn

    def _sample(self, logits: rt.HalBufferView, draws: Sequence[Draw | None], filler: Draw) -> list[int]:
        """Tokens of the rows that draw; where all rows are drawn at once, the others are given the filler."""
        if len(draws) in self._plan.draw_sizes:
            filled = [draw or filler for draw in draws]
            kind = "filter" if needs_filters(filled) else "draw"
            wanted = map(self._device.upload, parameters(filled))
            tokens = self._call(f"{kind}_{len(draws)}", logits, *wanted)[0]
            return list(self._device.download(tokens).tolist())
        each = self._device.download(logits)
        out = [0] * len(draws)
        for row, draw in enumerate(draws):
            if draw is not None:
                (out[row],) = self._sample(self._device.upload(each[row : row + 1]), [draw], draw)
        return out

    def _call(self, name: str, *arguments: rt.HalBufferView | int) -> list[rt.HalBufferView]:
        if name not in self._modules:  # not one of those that serving needs
            self._load([name], self._compiler.compile(self._plan.module([name])))
        return self._modules[name].call(name, *arguments)

    def _load(self, names: Sequence[str], file: Path) -> None:
        loaded = self._device.load(file, self._weights, SCOPE)
        for name in names:
            self._modules[name] = loaded

    def _compile_all(self, cores: int, progress: Progress) -> None:
        groups = self._plan.groups()
        done = 0
        progress("compile graphs", done, len(groups))
        with ThreadPoolExecutor(min(cores, len(groups)), thread_name_prefix="compile") as pool:
            # Traced here, one after the other: tracing is Python, compiling is another process.
            pending = [pool.submit(self._compiler.compile, self._plan.module(group)) for group in groups]
            for group, future in zip(groups, pending, strict=True):
                self._load(group, future.result())
                done += 1
                progress("compile graphs", done, len(groups))


def host_kv(plan: Plan, kv: Resident) -> HostKv | None:
    """The cache as the host sees it; None where it is in a device's own memory."""
    if kv.window is None or kv.memory is None:
        return None
    packed = (plan.ops.tiles.n, plan.ops.tiles.k) if isinstance(plan.ops, TiledOps) else None
    return HostKv(kv.window, kv.memory, plan.cache, packed)


class Angles:
    """cos and sin of RoPE angles: computed once for the positions of a context, on demand beyond it."""

    def __init__(self, frequencies: NDArray[np.float32], context: int) -> None:
        self._frequencies = frequencies
        self._cos, self._sin = self._compute(np.arange(context))

    def _compute(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        angles = positions[..., None].astype(np.float32) * self._frequencies
        return np.cos(angles), np.sin(angles)

    def at(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """float32 [..., head_dim / 2] for positions [...]."""
        if positions.max() < len(self._cos):
            return self._cos[positions], self._sin[positions]
        return self._compute(positions)


def choose_ops(config: ModelConfig, dtype: Dtype, device: Device) -> TiledOps | PlainOps:
    """Packed microkernels on a CPU whose tiles fit the model, plain StableHLO elsewhere.

    `dtype` "auto" is the checkpoint's, except bfloat16 on a CPU that cannot multiply it, which becomes float32.
    """
    cpu = Cpu.of_host()
    kind = config.dtype if dtype == "auto" else dtype
    if device.local and dtype == "auto" and kind == "bfloat16" and not {"avx512bf16", "bf16"} & cpu.features:
        kind = "float32"
    tiles = tiles_for(cpu.machine, cpu.features, kind)
    widths = (config.hidden_size, config.ffn, config.heads * config.head_dim)
    if device.local and config.head_dim % tiles.n == 0 and all(width % tiles.k == 0 for width in widths):
        return TiledOps(kind, tiles, tiles_for(cpu.machine, cpu.features, "float32"))
    return PlainOps(kind)
