"""The IREE runner of an encoder: hidden states of whole sequences, several in one call."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import config_digest, open_weights
from workers.checkpoints.encoders.config import EncoderConfig
from workers.engine.encoders.encoder_runner import CALL_ROWS, EncoderRunner, check_sequences, encoder_slots
from workers.engine.runner import Chunk, RunnerCapabilities
from workers.host.cpu_plan import CpuPlan
from workers.host.memory import Needed, free_bytes
from workers.host.placement import place_thread
from workers.iree.batch_inputs import RopeTable
from workers.iree.build.compile_client import Building, EncoderBuilder
from workers.iree.build.encoder.plan import ENCODE, CallSize, EncoderPlan
from workers.iree.build.encoder.recipe import EncoderRecipe
from workers.iree.build.lower import SCOPE
from workers.iree.build.weight_archive import Archive, ArchivePlace, open_archive
from workers.iree.device.buffers import DeviceBuffer, Input
from workers.iree.device.device import Device
from workers.iree.device.drivers import LOCAL_DRIVERS, choose_device, driver_of
from workers.iree.graph_registry import ModuleRegistry
from workers.iree.model.encoder.operations import TiledEncoderOps
from workers.iree.model.stored_parameters import quantization_of
from workers.load_options import LoadOptions, Progress


class IreeEncoderRunner(EncoderRunner):
    """`workers.engine.runner.Runner` for encoders. Owns the device; used only by the thread that loaded it."""

    def __init__(self, builder: EncoderBuilder, device: Device, archive: Archive, slots: int) -> None:
        plan, config = builder.plan, builder.plan.config
        self._plan: EncoderPlan = plan
        self._device, self._archive = device, archive
        self.graphs = ModuleRegistry(builder, lambda file: device.load(file, archive.index, SCOPE))
        self._sizes = {size.capacity: size for size in plan.sizes()}
        self._inputs_of: dict[int, list[Input]] = {}
        """The inputs of graphs, by their capacity."""
        self._scratch: dict[int, DeviceBuffer] = {}
        self._angles = None
        if config.ropes:
            each = [rope.frequencies(plan.context) for rope in config.ropes]
            factors = [np.full(len(frequencies), factor, np.float32) for frequencies, factor in each]
            frequencies = np.concatenate([frequencies for frequencies, _ in each])
            self._angles = RopeTable(frequencies, np.concatenate(factors), plan.context)
        tiled = isinstance(plan.ops, TiledEncoderOps)
        self.capabilities = RunnerCapabilities(
            backend="iree",
            device=device.uri,
            dtype=plan.ops.dtype,
            quantization=quantization_of(plan.weights),
            slots=encoder_slots(slots),
            context=plan.context,
            vocab_size=config.vocab_size,
            prefill_chunks=(CALL_ROWS,),
            exact_rows=tiled,
            block_rows=plan.block,
            weight_bytes=archive.nbytes,
            hidden_width=config.hidden_size,
            bidirectional=True,
        )

    @classmethod
    def load(
        cls, path: Path, config: EncoderConfig, options: LoadOptions, progress: Progress, *, background: bool = True
    ) -> "IreeEncoderRunner":
        """Open the device, pack the weights and compile the graphs meanwhile, or find both in the cache folder.

        Returns with the fewest graphs that can serve everything; the rest are compiled in the background, or before,
        without `background`. Raises what `IreeRunner.load` raises.
        """
        with contextlib.ExitStack() as undo:
            cpus = CpuPlan.of_host(options.workers, options.threads, options.threads_bind).at(options.place)
            uri, threads = choose_device(options.device, options.threads, config, cpus.threads)
            on_cpu = driver_of(uri) in LOCAL_DRIVERS
            if on_cpu:
                place_thread(cpus)
            device = Device(uri, threads, options.cpu, cpus.pins)
            undo.callback(device.close)
            builder = EncoderBuilder(EncoderRecipe.of(path, config, device, options))
            plan = builder.plan
            weights = sum(stored.nbytes for stored in plan.weights)
            free = free_bytes() if device.local else None
            needed = Needed(weights, 0, options.slots, plan.context)
            needed.check(free, options.quantize, quantizable=device.local, leaving=options.leaving_bytes)
            place = ArchivePlace(options.cache_dir)
            if on_cpu:
                place = ArchivePlace.of(options.cache_dir, cpus, options.mmap)
            wanted = plan.required() if background else plan.everything()
            building = Building(builder, wanted, max(1, cpus.threads // 2))  # while the weights are packed
            undo.callback(building.close)
            archive = open_archive(open_weights(path), config_digest(path), plan.weights, plan.ops, place, progress)
            undo.callback(archive.close)
            runner = cls(builder, device, archive, options.slots)
            undo.pop_all()  # the runner owns them from now on
            undo.callback(building.close)
            undo.callback(runner.close)
            runner.graphs.open(building, wanted, progress)
            undo.pop_all()
        if background:
            runner.graphs.fetch(plan.optional())
        return runner

    @property
    def graphs_failed(self) -> int:  # type: ignore[override]
        """Modules that could not be compiled or loaded. From any thread."""
        return self.graphs.failed

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """See `Runner.hidden`. A sequence is computed by the graph for its length, or until that is there by a larger
        one, with the same bits on a CPU."""
        check_sequences(self.capabilities, chunks, self._plan.config.token_types)
        found: dict[int, NDArray[np.float32]] = {}
        for size, sequences in self._calls(chunks):
            rows = self._call(size, sequences)
            at = 0
            for chunk in sequences:
                found[chunk.slot] = rows[at : at + len(chunk.tokens)]
                at += size.blocks_of(len(chunk.tokens)) * size.tokens
        return [found[chunk.slot] for chunk in chunks]

    def _calls(self, chunks: Sequence[Chunk]) -> Iterator[tuple[CallSize, list[Chunk]]]:
        """Divide sequences among calls, those of about one length together."""
        of_size: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            capacity = self.graphs.covering(ENCODE, list(self._sizes), len(chunk.tokens))
            assert capacity is not None, "checked: the largest graph has the context, and is always there"
            of_size.setdefault(capacity, []).append(chunk)
        for capacity, mine in of_size.items():
            size, call, blocks = self._sizes[capacity], list[Chunk](), 0
            for chunk in mine:
                more = size.blocks_of(len(chunk.tokens))
                if call and (blocks + more > size.blocks or len(call) == size.sequences):
                    yield size, call
                    call, blocks = [], 0
                call.append(chunk)
                blocks += more
            yield size, call

    def _call(self, size: CallSize, sequences: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute sequences, each in blocks of its own: float32 [rows, hidden]."""
        scratch = self._scratch.get(size.capacity)
        if scratch is None:
            kind = self._plan.scratch(size)
            scratch = self._scratch[size.capacity] = self._device.zeros(kind.shape, str(kind.dtype))
        arguments = [*self._arguments(size, sequences), scratch.view]
        result = self.graphs[size.name].call(size.name, *arguments)
        rows: NDArray[np.float32] = self._device.download(result[0])
        if not np.isfinite(rows[: self._rows(size, sequences)]).all() and scratch.window is not None:
            scratch.window[...] = 0  # what later sequences multiply by zero must be finite
        return rows

    def _rows(self, size: CallSize, sequences: Sequence[Chunk]) -> int:
        return sum(size.blocks_of(len(chunk.tokens)) for chunk in sequences) * size.tokens

    def _arguments(self, size: CallSize, sequences: Sequence[Chunk]) -> list[rt.HalBufferView]:
        shape = (size.blocks * size.tokens,)
        tokens, types = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        padding = self._padding(size)
        own, last = np.full(shape, padding, np.int32), np.full(shape, padding, np.int32)
        slots = np.zeros(size.blocks, np.int32)
        at = 0
        for number, chunk in enumerate(sequences):
            count, blocks = len(chunk.tokens), size.blocks_of(len(chunk.tokens))
            tokens[at : at + count] = chunk.tokens
            if chunk.token_types is not None and self._plan.config.token_types:
                types[at : at + count] = chunk.token_types
            own[at : at + count] = np.arange(count)
            last[at : at + count] = count - 1
            slots[at // size.tokens : at // size.tokens + blocks] = number
            at += blocks * size.tokens
        places = (size.blocks, size.tokens)
        values: list[NDArray[Any]] = [*(each.reshape(places) for each in (tokens, types, own, last)), slots]
        if self._angles is not None:
            values += self._angles.at(np.minimum(own, size.capacity - 1).reshape(places).astype(np.int64))
        if size.capacity not in self._inputs_of:
            self._inputs_of[size.capacity] = [self._device.input(each.shape, each.dtype.name) for each in values]
        return [given.put(value) for given, value in zip(self._inputs_of[size.capacity], values, strict=True)]

    def _padding(self, size: CallSize) -> int:
        """Return the position of padding rows: in the scratch cache the last row, which nothing attends to."""
        if not isinstance(self._plan.ops, TiledEncoderOps):
            return size.capacity
        return int(self._plan.scratch(size).shape[-1]) // self._plan.config.head_dim - 1

    def memory(self) -> dict[str, int]:
        """Return the bytes of packed weights and of all buffers that the device's allocator has allocated."""
        return {"weights": self._archive.nbytes, "kv": 0, "allocated": self._device.allocated}

    def settle(self) -> None:
        """See `Runner.settle`."""
        self.graphs.settle()

    def close(self) -> None:
        """See `Runner.close`."""
        self.graphs.close()
        self._inputs_of.clear()
        self._scratch.clear()
        self._device.close()
        # After the device's threads have ended: who drops the last reference to the weights calls into Python.
        self._archive.close()
        del self._archive
