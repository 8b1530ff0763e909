"""The IREE runner: compiled graphs over one KV cache that stays on the device."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig, config_digest, open_weights
from workers.engine.runner import (
    AttentionReader,
    Chunk,
    DecodeRow,
    DraftHead,
    check_chunks,
    check_hidden,
    check_specs,
    check_targets,
)
from workers.host.cpu_plan import CpuPlan
from workers.host.memory import free_bytes
from workers.host.placement import place_thread
from workers.iree.batch_inputs import RopeTable, mrope_axes
from workers.iree.build.compile_client import Builder, Building
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.build.lower import SCOPE
from workers.iree.build.recipe import Recipe
from workers.iree.build.weight_archive import Archive, ArchivePlace, open_archive
from workers.iree.device.device import Device
from workers.iree.device.drivers import LOCAL_DRIVERS, choose_device, driver_of
from workers.iree.execution.attention_rows import AttentionRows
from workers.iree.execution.capabilities import capabilities_of
from workers.iree.execution.decode_steps import DecodeSteps
from workers.iree.execution.hidden_states import PromptHiddenStates
from workers.iree.execution.prompt_inputs import PromptInputs
from workers.iree.execution.prompts import PromptGraphs
from workers.iree.execution.scores import PromptScores
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.execution.slot_rows import SlotRows
from workers.iree.graph_registry import GraphRegistry
from workers.iree.kv_memory import needed, row_bytes
from workers.iree.lora.adapter_store import AdapterStore, open_adapters
from workers.iree.lora.lora_plan import ADAPTED
from workers.iree.lora.row_adapters import RowAdapters
from workers.iree.model.decoder import embedding_scale, rope_frequencies
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.mtp import IreeMtpHead
from workers.iree.sampler import Sampler
from workers.iree.vision.encoder import IreeVision
from workers.load_options import LoadOptions, Progress
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec
from workers.vision.encoder import VisionEncoder
from workers.vision.tower import find_tower


class IreeRunner:
    """`workers.engine.runner.Runner` on IREE. Owns the device and the cache; used only by the thread that loaded it.

    The methods check their arguments against the rows of the slots, and leave the rest to the parts in
    `workers.iree.execution`.
    """

    def __init__(
        self,
        builder: Builder,
        device: Device,
        archive: Archive,
        digest: str,
        kv_rows: int = 0,
        adapters: AdapterStore | None = None,
    ) -> None:
        """`digest` is the checkpoint's, of `config_digest`; `kv_rows` as in `RunnerCapabilities`; `adapters` are places
        for those that are loaded at run time."""
        plan, context = builder.plan, builder.recipe.context
        self._plan = plan
        self._device = device
        self._archive = archive
        self.graphs = GraphRegistry(builder, lambda file: device.load(file, archive.index, SCOPE))
        self.adapter_slots = adapters
        """See `workers.engine.adapters.adapter_slots.HoldsAdapters`."""
        self._vision: IreeVision | None = None
        self._buffers = SlotBuffers(device, plan)
        self.capabilities = capabilities_of(builder, device, archive, digest, self._buffers, kv_rows)
        call = lambda *call: self.graphs.call(*call)  # noqa: E731 - looked up at each call, for tests
        self._sampler = Sampler(device, self.graphs, call, plan)
        angles, ahead = _rope_table(plan, context), [0] * plan.cache.slots
        self._mtp = None
        if plan.config.mtp:
            kv = lambda: self._buffers.kv_views  # noqa: E731 - as above
            self._mtp = IreeMtpHead(device, self.graphs, plan, angles, self._sampler, call, kv, ahead)
        self._rows = SlotRows(self.capabilities, self._buffers, self.graphs, self._mtp, ahead)
        self._open_graphs(angles)

    def _open_graphs(self, angles: RopeTable) -> None:
        """Make the parts that call graphs."""
        device, plan, graphs, buffers = self._device, self._plan, self.graphs, self._buffers
        sampler, mtp, written = self._sampler, self._mtp, self._rows.written
        self._adapters = RowAdapters(device)
        self._steps = DecodeSteps(device, plan, graphs, angles, buffers, written, self._adapters, sampler, mtp)
        self._inputs = PromptInputs(device, plan, angles, buffers, written, self._adapters)
        self._prompts = PromptGraphs(device, plan, graphs, self._inputs, self._steps, sampler, mtp)
        exact = self.capabilities.exact_rows
        self._scores = PromptScores(
            device, plan, graphs, buffers, written, self._prompts, self._steps, sampler, exact=exact
        )
        self._hidden = PromptHiddenStates(device, plan, graphs, self._inputs, self._prompts)
        self._looked = AttentionRows(device, plan, graphs, buffers, self._inputs)
        self._attention = None
        if self._looked.readable:
            self._attention = AttentionReader(self._looked.layers, self._queries, self._looked.keys)

    @classmethod
    def load(
        cls, path: Path, config: ModelConfig, options: LoadOptions, progress: Progress, *, background: bool = True
    ) -> "IreeRunner":
        """Open the device, pack the weights and compile the graphs meanwhile, or find both in the cache folder.

        Returns with the fewest graphs that can serve everything. The rest are compiled in the background. Without
        `background` it waits for all that are required, and compiles others when `graphs.fetch` asks for them. Raises
        `CheckpointError`, `DeviceError`, `CacheError`, `ArchiveError`, `MemoryRefused` and `CompileError`.
        """
        with contextlib.ExitStack() as undo:
            cpus = CpuPlan.of_host(options.workers, options.threads, options.threads_bind).at(options.place)
            uri, threads = choose_device(options.device, options.threads, config, cpus.threads)
            on_cpu = driver_of(uri) in LOCAL_DRIVERS
            if on_cpu:
                place_thread(cpus)
            device = Device(uri, threads, options.cpu, cpus.pins)
            undo.callback(device.close)
            recipe = Recipe.of(path, config, device, options)
            builder = Builder(recipe)
            plan = builder.plan
            free = free_bytes() if device.local else None  # IREE does not report the memory of other devices
            later = None if free is None else max(0, free + options.leaving_bytes - options.reserved_bytes)
            needs = needed(plan, recipe.context, options.kv_bytes, later, options.workers)
            quantizable = config.quantization is None and isinstance(plan.ops, TiledOps)
            needs.check(free, options.quantize, quantizable=quantizable, leaving=options.leaving_bytes)
            kv_rows = needs.kv // row_bytes(plan) if device.local else 0
            place = ArchivePlace(options.cache_dir)
            if on_cpu:
                place = ArchivePlace.of(options.cache_dir, cpus, options.mmap)
            building = Building(builder, plan.required(), max(1, cpus.threads // 2))  # while the weights are packed
            undo.callback(building.close)
            digest = config_digest(path)
            archive = open_archive(
                open_weights(path, options.quantize), digest, plan.weights, plan.ops, place, progress
            )
            undo.callback(archive.close)
            store = None
            if plan.lora is not None:
                nbytes, store = open_adapters(archive.index, config, options, plan.weights, plan.ops)
                archive.nbytes += nbytes
            runner = cls(builder, device, archive, digest, kv_rows, store)
            undo.pop_all()  # the runner owns them from now on
            undo.callback(building.close)
            undo.callback(runner.close)
            runner.graphs.open(building, plan.first() if background else plan.required(), progress)
            runner._open_vision(path, options.mmproj, progress)
            undo.pop_all()
        if background:
            runner.graphs.fetch(plan.optional(), plan.rare())
        return runner

    @property
    def graphs_failed(self) -> int:
        """Modules that could not be compiled or loaded. From any thread."""
        return self.graphs.failed

    def fits(self, rows: int) -> bool:
        kinds = ("decode",) if self._plan.lora is None else ("decode", f"{ADAPTED}decode")
        sizes = (self._plan.draft_rows,)
        return rows <= self._plan.buckets[-1] or None not in [self.graphs.covering(kind, sizes, rows) for kind in kinds]

    @property
    def draft_head(self) -> DraftHead | None:
        return self._mtp

    @property
    def vision(self) -> VisionEncoder | None:
        """See `Runner.vision`."""
        return self._vision

    def _open_vision(self, path: Path, mmproj: str, progress: Progress) -> None:
        """Load the vision tower, if the plan has one. Raises `CheckpointError`."""
        graphs, tower = self._plan.tower, find_tower(path, mmproj)
        if graphs is None or tower is None:
            return
        module, config = self.graphs[graphs.names[0]], self._plan.config
        scale = embedding_scale(config, self._plan.ops.dtype)
        self._vision = IreeVision(self._device, graphs, module, tower.weights(), scale, progress)

    @property
    def attention(self) -> AttentionReader | None:
        return self._attention

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        check_specs(self.capabilities, chunks, specs)
        self._begin(chunks)
        return self._prompts.prefill(chunks, specs)

    def _begin(self, chunks: Sequence[Chunk]) -> None:
        """Check chunks of prompts, of which the next calls of graphs are."""
        self._rows.check_chunks(chunks)
        self._sampler.forget()
        self._rows.prefilled(chunks)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._rows.check_decode(rows)
        return self._steps.sample(rows, prompt=False)

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        return self._sampler.logprobs(rows)

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """See `PromptScores.reported_rows`."""
        return self._scores.reported_rows

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        check_targets(self.capabilities, chunk, targets)
        self._begin([chunk])
        reports, again = self._scores.report(chunk, spec, targets)
        if again is None:
            return None, reports
        (token,) = self.prefill([again], [spec])
        return token, reports

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        self._rows.check_chunks([chunk])
        self._rows.prefilled([chunk])
        return self._scores.logits(chunk)

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """See `Runner.hidden`. Waits for a graph that leaves hidden states, which a new runner may not have yet."""
        check_hidden(self.capabilities, chunks)
        self._hidden.prepare(chunks)
        self._begin(chunks)
        return self._hidden.of(chunks)

    def _queries(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        check_chunks(self.capabilities, self._rows.written.__getitem__, [chunk])
        self._sampler.forget()
        return self._looked.queries(chunk)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._rows.copy_prefix(source, target, length)

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        return self._rows.read_rows(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        self._rows.write_rows(slot, start, rows)

    def read_state(self, slot: int, length: int | None = None) -> bytes | memoryview:
        return self._rows.read_state(slot, length)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        self._rows.write_state(slot, state)

    def reset(self, slot: int) -> None:
        self._rows.reset(slot)

    def memory(self) -> dict[str, int]:
        """Return the bytes of packed weights, KV cache, recurrent states and a vision tower if there are any, and all
        buffers that the device's allocator has allocated."""
        vision = {} if self._vision is None else self._vision.memory()
        kept = {"weights": self._archive.nbytes} | self._buffers.memory()
        return kept | vision | {"allocated": self._device.allocated}

    def settle(self) -> None:
        self.graphs.settle()

    def close(self) -> None:
        self.graphs.close()
        self._sampler.forget()
        self._inputs.close()
        self._steps.close()
        self._adapters.close()
        if self._mtp is not None:
            self._mtp.close()
            self._mtp = None
        if self._vision is not None:
            self._vision.close()
            self._vision = None
        self._prompts.close()
        self._buffers.close()
        self._device.close()
        # After the device's threads have ended: who drops the last reference to the weights calls into Python.
        self._archive.close()
        del self._archive


def _rope_table(plan: GraphPlan, context: int) -> RopeTable:
    """Return the angles of RoPE, with the axes of M-RoPE if the model has a vision tower that needs them."""
    frequencies, factors = rope_frequencies(plan.config, context)
    axes = None
    if plan.vision is not None and plan.vision.mrope:
        axes = mrope_axes(plan.vision.mrope, len(frequencies), interleaved=plan.vision.mrope_interleaved)
    return RopeTable(frequencies, factors, context, axes)
