"""The IREE runner: compiled graphs over one KV cache that stays on the device."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.checkpoints.architectures.parts import full_layers
from workers.checkpoints.checkpoint import ModelConfig, config_digest, open_weights
from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import (
    LOOKED_ROWS,
    AttentionReader,
    Chunk,
    DecodeRow,
    DraftHead,
    NotFiniteError,
    RunnerCapabilities,
    check_chunks,
    check_copy,
    check_hidden,
    check_read,
    check_rows,
    check_specs,
    check_targets,
    check_write,
    chunks_of,
)
from workers.engine.slot_states import SlotStates
from workers.host.cpu_plan import CpuPlan
from workers.host.memory import free_bytes
from workers.host.placement import place_thread
from workers.iree.batch_inputs import DecodeInputs, RopeTable, SlotRun, attended_ends, mrope_axes, runs_of
from workers.iree.build.compile_client import Builder, Building
from workers.iree.build.graph_plan import EMBEDDED, HIDDEN, QUERIES, GraphPlan
from workers.iree.build.lower import SCOPE
from workers.iree.build.recipe import Recipe
from workers.iree.build.weight_archive import Archive, ArchivePlace, open_archive
from workers.iree.device.buffers import Input
from workers.iree.device.device import Device, Results
from workers.iree.device.drivers import LOCAL_DRIVERS, choose_device, driver_of
from workers.iree.graph_registry import GraphRegistry
from workers.iree.hidden_rows import float_rows
from workers.iree.kv_memory import host_kv, needed, ring_bytes, row_bytes
from workers.iree.lora.adapter_store import AdapterStore, open_adapters
from workers.iree.lora.lora_plan import ADAPTED
from workers.iree.lora.row_adapters import RowAdapters, kind_for
from workers.iree.model.decoder import embedding_scale, rope_frequencies
from workers.iree.model.stored_parameters import quantization_of
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.window_ring import drafted_rows, kept_rows
from workers.iree.mtp import IreeMtpHead
from workers.iree.rows_format import rows_format
from workers.iree.sampler import Sampler
from workers.iree.slot_state_buffer import SlotStateBuffer
from workers.iree.vision.encoder import IreeVision
from workers.iree.window_states import WindowStates
from workers.load_options import LoadOptions, Progress
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec, with_masks
from workers.vision.encoder import VisionEncoder
from workers.vision.tower import find_tower

UNREADY_ROWS = 4
"""Rows of a chunk with log-probabilities while the host computes these, which takes it some 6 ms for a row of a
vocabulary of 150,000."""


class IreeRunner:
    """`workers.engine.runner.Runner` on IREE. Owns the device and the cache; used only by the thread that loaded it."""

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
        self._cache = plan.cache
        self._device = device
        self._archive = archive
        self.graphs = GraphRegistry(builder, lambda file: device.load(file, archive.index, SCOPE))
        self._kv = [device.zeros(group.shape, group.dtype(plan.ops.dtype)) for group in plan.cache.groups]
        self._host_kv = host_kv(plan, self._kv)
        self._states = SlotStateBuffer(device, plan) if plan.config.state_values else None
        self._no_rows = device.zeros(plan.last_rows.shape, str(plan.last_rows.dtype))
        self._width = plan.config.hidden_size
        """Values of a row of embeddings, those of padding included."""
        self._inputs_of: dict[tuple[int, ...], list[Input]] = {}
        """The inputs of prefill graphs, by their blocks and the rows of each; without the cache."""
        self._decode_inputs: dict[int, DecodeInputs] = {}
        """By the rows of the graph."""
        self._adapters = RowAdapters(device)
        self.adapter_slots = adapters
        """See `workers.engine.adapters.adapter_slots.HoldsAdapters`."""
        self._written = [0] * plan.cache.slots
        self._ahead = [0] * plan.cache.slots
        """The rows that the head for multi-token prediction has filled."""
        self._sampler = Sampler(device, self.graphs, lambda *call: self._call(*call), plan)
        self._angles = _rope_table(plan, context)
        self._attention = None
        layers = full_layers(plan.config.plan)
        if plan.queries and self._host_kv is not None and layers:
            self._attention = AttentionReader(layers, self._queries, self._keys)
        self._vision: IreeVision | None = None
        self._mtp = None
        if plan.config.mtp:
            call = lambda *call: self._call(*call)  # noqa: E731 - as above
            self._mtp = IreeMtpHead(
                device, self.graphs, plan, self._angles, self._sampler, call, lambda: self._kv_views, self._ahead
            )
        ring, reach = plan.cache.ring, plan.config.widest_window - 1
        self._windows = None
        if ring:
            assert self._host_kv is not None, "rings are for a cache in host memory"
            self._windows = WindowStates(self._host_kv, plan.cache.slots, ring, reach)
        of_states = self._states or self._windows
        rollback_rows = drafted_rows(plan.cache.slots) if ring else plan.state_versions - 1
        self.capabilities = RunnerCapabilities(
            backend="iree",
            device=device.uri,
            dtype=plan.ops.dtype,
            quantization=quantization_of(plan.weights),
            slots=plan.cache.slots,
            context=context,
            vocab_size=plan.config.vocab_size,
            prefill_chunks=plan.chunks,
            exact_rows=isinstance(plan.ops, TiledOps),
            decode_rows=plan.buckets[-1] if isinstance(plan.ops, TiledOps) else 0,
            draft_rows=plan.draft_rows,
            block_rows=plan.block or 1,
            row_bytes=row_bytes(plan),
            weight_bytes=archive.nbytes,
            kv_rows=kv_rows,
            rows_format=rows_format(digest, builder.recipe, plan) if self._host_kv is not None else "",
            embedding_width=plan.embedding_width,
            bidirectional_images=plan.has_ends,
            state_bytes=0 if of_states is None else of_states.state_bytes,
            rollback_rows=rollback_rows,
            window_rows=kept_rows(ring, plan.cache.slots) if ring else 0,
            window_reach=reach if ring else 0,
            window_bytes=ring_bytes(plan),
            hidden_width=plan.hidden_width,
            adapters=tuple(name for name, _ in builder.recipe.lora_modules),
            adapter_places=builder.recipe.runtime_loras,
        )
        self._known = SlotStates(self.capabilities)

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
        self._check_chunks(chunks)
        self._sampler.forget()
        self._prefilled(chunks)
        wanted = [spec for spec in specs if spec is not None]
        embedded = self.capabilities.embedding_width > 0 and any(has_rows(chunk.tokens) for chunk in chunks)
        if not embedded and not self._has_prompt_graphs(kind_for("prefill", chunks), head=bool(wanted)):
            return self._prefill_by_decoding(chunks, specs)
        lasts = iter(range(len(wanted)))
        output_indices = [-1 if spec is None else next(lasts) for spec in specs]
        last_rows = self._no_rows.view
        kind = kind_for(EMBEDDED if embedded else "prefill", chunks)
        for size, runs in self._calls(chunks, output_indices, kind):
            ends = np.full(self._plan.last_rows.shape[0], -1, np.int32)
            for row, run in enumerate(runs):
                if run.output_index >= 0:
                    ends[run.output_index] = row * (self._plan.block or size) + len(run.tokens) - 1
            arguments = [*self._run_inputs(runs, size), self._device.upload(ends), last_rows]
            if embedded:
                arguments.append(self._device.upload(self._given_rows(runs, size)))
                if self._plan.has_ends:
                    shape = (size // (self._plan.block or size), self._plan.block or size)
                    arguments.append(self._device.upload(attended_ends(runs, shape)))
            result = self._call(f"{kind}_{size}", *arguments, *self._adapters_of(kind, runs, size))
            last_rows = result[0]
            self._computed(runs, size, result, 2)
        if not wanted:
            return [None] * len(chunks)
        tokens = self._sample_last(last_rows, with_masks(wanted))
        return [None if index < 0 else tokens[index] for index in output_indices]

    def _check_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Raise `ValueError` for chunks that the slots cannot take, and take back the rows that they replace."""
        check_chunks(self.capabilities, self._written.__getitem__, chunks)
        self._known.check_call(self._written, chunks, decode=False)
        self._take_back(chunks)
        self._note_lost(chunks)

    def _take_back(self, chunks: Sequence[Chunk]) -> None:
        """Take the rows back from recurrent states that chunks begin before."""
        for chunk in chunks if self._states is not None else ():
            if (back := self._written[chunk.slot] - chunk.start) > 0:
                self.copy_prefix(chunk.slot, chunk.slot, chunk.start)
                assert self._known.known(chunk.slot), f"checked: {back} rows can be taken back"

    def _note_lost(self, chunks: Sequence[Chunk]) -> None:
        """Raise `ValueError` for chunks that would read rows that windows have lost, and note what is lost by them."""
        if self._windows is None:
            return
        for chunk in chunks:
            self._windows.check(chunk.slot, self._written[chunk.slot], chunk.start)
        for chunk in chunks:
            if chunk.start == 0 and self._written[chunk.slot]:
                self.copy_prefix(chunk.slot, chunk.slot, 0)
            self._windows.wrote(chunk.slot, max(self._written[chunk.slot], chunk.start + len(chunk.tokens)))

    def _prefilled(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._known.prefilled(chunk.slot)

    def _has_prompt_graphs(self, kind: str, *, head: bool) -> bool:
        """Return whether a prefill graph of a kind is ready, and with `head` an LM head for all rows that it leaves."""
        sizes = self._plan.prefill_sizes
        if self.graphs.covering(kind, sizes, sizes[0]) is None:
            return False
        return not head or f"head_{self._plan.head_sizes[-1]}" in self.graphs

    def _prefill_by_decoding(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """Compute prompts by a decode graph, whose rows may be of one slot: all of them are in the cache before one
        attends to it. The last row of each chunk is in the last call, from which tokens are sampled."""
        before: list[DecodeRow] = []
        lasts: list[DecodeRow] = []
        for chunk, spec in zip(chunks, specs, strict=True):
            *others, last = _rows_of(chunk, spec)
            before += others
            (before if spec is None else lasts).append(last)
        most = self._plan.buckets[-1]
        for at in range(0, len(before), most):
            self._decode_rows(before[at : at + most])
        tokens = iter(self._decode(lasts, prompt=True))
        return [None if spec is None else next(tokens) for spec in specs]

    def _calls(
        self, chunks: Sequence[Chunk], output_indices: Sequence[int], kind: str = "prefill"
    ) -> Iterator[tuple[int, list[SlotRun]]]:
        """Divide the rows of chunks, a block of one slot after the other, among the cheapest graphs that are ready."""
        of_kind = {EMBEDDED: self._plan.embedded_sizes, HIDDEN: self._plan.hidden_sizes}
        sizes, block = of_kind.get(kind.removeprefix(ADAPTED), self._plan.prefill_sizes), self._plan.block
        runs = [
            run
            for chunk, index in zip(chunks, output_indices, strict=True)
            for run in runs_of(chunk, index, block or sizes[-1])
        ]
        while runs:
            rows = len(runs) * block if block else len(runs[0].tokens)
            size = self.graphs.covering(kind, sizes, min(rows, sizes[-1])) or self.graphs.largest(kind, sizes)
            count = size // block if block else 1
            yield size, runs[:count]
            runs = runs[count:]

    def _sample_last(self, rows: rt.HalBufferView, specs: list[SampleSpec]) -> list[int | None]:
        """Tokens from the first hidden rows."""
        result = self._head_logits(rows, len(specs))
        padded: list[SampleSpec | None] = [*specs, *[None] * (result[1].shape[0] - len(specs))]
        return self._sampler.sample(result, padded, range(len(specs)))

    def _head_logits(self, rows: rt.HalBufferView, count: int) -> Results:
        """Return greedy tokens and logits of at least the first `count` hidden rows."""
        size = self.graphs.covering("head", self._plan.head_sizes, count) or self._plan.head_sizes[-1]
        return self._call(f"head_{size}", rows, count)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        check_rows(self.capabilities, self._written, rows)
        if self._states is not None:
            chunks = chunks_of(rows)
            self._known.check_call(self._written, chunks, decode=True)
            self._take_back(chunks)
            for chunk in chunks:
                # The only row of a slot is written over the state before it.
                self._known.decoded(chunk.slot, len(chunk.tokens) if len(chunk.tokens) > 1 else 0)
        if self._windows is not None:
            self._note_lost(chunks_of(rows))
        return self._decode(rows, prompt=False)

    def _decode(self, rows: Sequence[DecodeRow], *, prompt: bool) -> list[int | None]:
        """Like `decode`, for rows that were checked, or those of prompts."""
        if not rows:
            return []
        result, output_indices, batch, greedy = self._decode_rows(rows, prompt=prompt)
        specs: list[SampleSpec | None] = [None] * batch
        for index, spec in zip(output_indices, with_masks(row.sample for row in rows), strict=True):
            specs[index] = spec
        return self._sampler.sample(result, specs, output_indices, greedy)

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        return self._sampler.logprobs(rows)

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """A few rows, which a prefill graph and its head take, and those of the scoring graph once it is ready."""
        few, size = self._few_rows, self._plan.score_chunk
        if not self._sampler.reports(few):
            return (min(few, UNREADY_ROWS),)
        return (few, size) if self.graphs.covering("score", (size,), size) else (few,)

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        check_targets(self.capabilities, chunk, targets)
        self._check_chunks([chunk])
        self._sampler.forget()
        self._prefilled([chunk])
        exact, length = self.capabilities.exact_rows, len(chunk.tokens)
        size, kind = self._plan.score_chunk, kind_for("score", [chunk])
        if (exact and length <= self._few_rows) or not self.graphs.covering(kind, (size,), size):
            size = self._few_rows
        reports: list[RowLogprobs] = []
        # Another graph may have rounded otherwise: unless rows are exact, all are computed again as without a report.
        again = 0 if not exact else length - 1
        starts = list(range(0, length, size))
        before = None
        if self._states is not None and spec is not None:
            starts = sorted({*starts, again})
        for at, end in zip(starts, [*starts[1:], length], strict=True):
            if self._states is not None and at == again:
                before = self._states.read(chunk.slot)
            part = chunk.part(at, end - at)
            result = self._few_logits(part) if size == self._few_rows else self._score_logits(part, size)
            reports += self._sampler.reports_of(result, len(part.tokens), targets[at:end])
        if exact and spec is None:
            return None, reports
        if self._states is not None and before is not None:
            self._states.write(chunk.slot, before)
            self._written[chunk.slot] = chunk.start + again
        (token,) = self.prefill([chunk.part(again, length - again)], [spec])
        return token, reports

    @property
    def _few_rows(self) -> int:
        """Rows of one prefill graph that `head` takes, if rows are exact."""
        return min(self._plan.head_sizes[-1], self._plan.chunks[0])

    def _few_logits(self, chunk: Chunk) -> Results:
        """Compute a chunk of few rows: greedy tokens and logits of all of them."""
        kind = kind_for("prefill", [chunk])
        if not self._has_prompt_graphs(kind, head=True):
            return self._decode_rows(_rows_of(chunk))[0]
        return self._head_logits(self._few_prefilled(chunk)[0], len(chunk.tokens))

    def _few_prefilled(self, chunk: Chunk) -> Results:
        """Compute a chunk of few rows by a prefill graph: the hidden rows of all of them, and the cache."""
        kind = kind_for("prefill", [chunk])
        ((size, runs),) = self._calls([chunk], [-1], kind)
        ends = np.full(self._plan.last_rows.shape[0], -1, np.int32)
        ends[: len(chunk.tokens)] = np.arange(len(chunk.tokens))
        arguments = self._run_inputs(runs, size)
        arguments += [self._device.upload(ends), self._no_rows.view, *self._adapters_of(kind, runs, size)]
        result = self._call(f"{kind}_{size}", *arguments)
        self._computed(runs, size, result, 2)
        return result

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        self._check_chunks([chunk])
        self._prefilled([chunk])
        size = self._plan.score_chunk
        if self.graphs.covering(kind_for("score", [chunk]), (size,), size):
            parts = [self._score(chunk, at, size) for at in range(0, len(chunk.tokens), size)]
        else:  # by single steps, which are slower than the graph and faster than its compiler
            parts = [self._score_row(chunk, at) for at in range(len(chunk.tokens))]
        whole = np.concatenate(parts)
        if not np.isfinite(whole.max(axis=-1)).all():
            raise NotFiniteError
        return whole

    def _score(self, chunk: Chunk, at: int, size: int) -> NDArray[np.float32]:
        part = chunk.part(at, size)
        logits: NDArray[np.float32] = self._device.download(self._score_logits(part, size)[1])
        return logits[: len(part.tokens)]

    def _score_logits(self, chunk: Chunk, size: int) -> Results:
        """Run the scoring graph on a chunk of up to `size` rows: greedy tokens and logits of all rows."""
        runs, kind = runs_of(chunk, -1, self._plan.block or size), kind_for("score", [chunk])
        result = self._call(f"{kind}_{size}", *self._run_inputs(runs, size), *self._adapters_of(kind, runs, size))
        self._computed(runs, size, result, 3)
        return result

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """See `Runner.hidden`. Until the graph for all rows is there, one for prompts returns a few rows each time;
        waits for that one, which a new runner may not have yet."""
        check_hidden(self.capabilities, chunks)
        if any(has_rows(chunk.tokens) for chunk in chunks):
            raise ValueError("chunks: hidden states are of tokens alone")
        sizes = self._plan.hidden_sizes
        if sizes and not self.graphs.covering(HIDDEN, sizes, sizes[0]):
            self.graphs.wait_for(f"prefill_{self._plan.prefill_sizes[-1]}")
        self._check_chunks(chunks)
        self._sampler.forget()
        self._prefilled(chunks)
        if sizes and self.graphs.covering(HIDDEN, sizes, sizes[0]):
            return self._hidden_at_once(chunks)
        most = self._few_rows if sizes else self._plan.score_chunk
        compute = self._few_hidden if sizes else self._scored_hidden
        starts = [range(0, len(chunk.tokens), most) for chunk in chunks]
        return [
            np.concatenate([compute(chunk.part(at, most)) for at in each])
            for chunk, each in zip(chunks, starts, strict=True)
        ]

    def _hidden_at_once(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        found: dict[int, list[NDArray[np.float32]]] = {chunk.slot: [] for chunk in chunks}
        block = self._plan.block
        for size, runs in self._calls(chunks, [-1] * len(chunks), HIDDEN):
            result = self._call(f"{HIDDEN}_{size}", *self._run_inputs(runs, size))
            rows = self._float_rows(result[0])
            for at, run in enumerate(runs):
                found[run.slot].append(rows[at * block : at * block + len(run.tokens)])
            self._computed(runs, size, result, 2)
        return [np.concatenate(found[chunk.slot]) for chunk in chunks]

    def _few_hidden(self, chunk: Chunk) -> NDArray[np.float32]:
        return self._float_rows(self._few_prefilled(chunk)[0])[: len(chunk.tokens)]

    def _scored_hidden(self, chunk: Chunk) -> NDArray[np.float32]:
        result = self._score_logits(chunk, self._plan.score_chunk)
        return self._float_rows(result[2 + len(self._kept) + (self._mtp is not None)])[: len(chunk.tokens)]

    def _float_rows(self, operand: rt.HalBufferView) -> NDArray[np.float32]:
        ops = self._plan.ops
        halves = isinstance(ops, TiledOps) and ops.arithmetic.per_word == 2
        return float_rows(self._device.window(operand), self.capabilities.hidden_width, halves=halves)

    def _computed(self, runs: Sequence[SlotRun], size: int, result: Results, index: int) -> None:
        """Give the hidden rows of a graph of `size` rows to the head that drafts: the result at `index`, behind the
        recurrent states if there are any."""
        if self._mtp is None or self._mtp.rows.idle:
            return
        view = result[index + len(self._kept) - 1]
        hidden = self._device.window(view)
        block = self._plan.block or size
        for at, run in enumerate(runs):
            rows = hidden[at * block : at * block + len(run.tokens)]
            if (position := run.first_position) is not None and not has_rows(run.tokens):
                self._mtp.computed(run.slot, run.start, position, run.tokens, rows, prompt=True)
            else:  # the head has rows of tokens at consecutive positions only
                self._mtp.rows.forget(run.slot)

    def _score_row(self, chunk: Chunk, at: int) -> NDArray[np.float32]:
        result, (index,), _, _ = self._decode_rows(_rows_of(chunk.part(at, 1)))
        logits: NDArray[np.float32] = self._device.download(result[1])
        return logits[index : index + 1]

    def _decode_rows(
        self, rows: Sequence[DecodeRow], *, prompt: bool = True
    ) -> tuple[Results, Sequence[int], int, list[int] | None]:
        """Run the cheapest decode graph that is ready and holds the rows, which were checked. Several may be of one
        slot where rows are exact: the KV of all of them is written in each layer before any of them attends, and a
        recurrent state takes them in order; those of prompts change it in place.

        Returns its results, the index of each row among its outputs, how many rows it has, and `DecodeInputs.greedy`.
        """
        most = self._plan.buckets[-1]
        sizes = self._plan.buckets if len(rows) <= most else (self._plan.draft_rows,)
        kind = kind_for("decode", rows)
        batch = self.graphs.covering(kind, sizes, len(rows)) or sizes[-1]
        # Rows lie side by side whatever their slots are. Plain graphs have a row for each slot, in order.
        output_indices = range(len(rows)) if self._plan.block else [row.slot for row in rows]
        for row in rows:
            self._written[row.slot] = max(self._written[row.slot], row.start + 1)
        inputs = self._decode_inputs.get(batch)
        if inputs is None:
            slots, places = self._cache.slots, self._plan.has_places
            inputs = DecodeInputs(self._device, batch, self._angles, self._cache.spare_row, slots, has_places=places)
            self._decode_inputs[batch] = inputs
        arguments = [*inputs.write(output_indices, rows), *self._kept]
        if self._states is not None:
            arguments += self._states.decode_places([row.slot for row in rows], inputs.places, in_place=prompt)
        arguments += inputs.results
        if kind != "decode":
            arguments.append(self._adapters.input(batch, output_indices, rows))
        result = self._call(f"{kind}_{batch}", *arguments)
        greedy = inputs.greedy
        if self._mtp is not None and not self._mtp.rows.idle:
            view, first = result[2 + len(self._kept)], 0
            hidden = self._device.window(view)
            for chunk in chunks_of(rows):
                mine = hidden[first : first + len(chunk.tokens)]
                self._mtp.computed(chunk.slot, chunk.start, chunk.position, chunk.tokens, mine, prompt=prompt)
                first += len(chunk.tokens)
        return result, output_indices, batch, greedy

    def _queries(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        check_chunks(self.capabilities, self._written.__getitem__, [chunk])
        self._sampler.forget()
        (run,) = runs_of(chunk, -1, LOOKED_ROWS)
        result = self._call(f"{QUERIES}_{LOOKED_ROWS}", *self._run_inputs([run], LOOKED_ROWS))
        layers = len(full_layers(self._plan.config.plan))
        return [self._device.download(result[number])[: len(run.tokens)] for number in range(layers)]

    def _keys(self, slot: int, layer: int, end: int) -> NDArray[np.float32]:
        config = self._plan.config
        assert self._host_kv is not None, "checked"
        group = self._host_kv.groups[config.kv_group(layer)]
        return group.keys(slot, config.kv_index(layer), end, self._plan.ops.dtype)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        check_copy(self.capabilities, self._written.__getitem__, source, target, length)
        written, held = self._written[source], max(self._written[target], self._ahead[target])
        self._written[target] = max(length, held)  # if the copy fails half-way, a reset clears all of it
        if self._states is not None:
            back = self._known.copied(source, target, length, written)
            if back is None:
                self._states.clear(target)
            else:
                self._states.copy(source, target, back)
        rings = self._windows is not None and self._windows.copied(source, target, written, length)
        if self._host_kv is None:
            self._call("copy", *self._kv_views, source, target, length)
        else:
            self._host_kv.copy_prefix(source, target, length, written, held, rings=rings)
        self._written[target], self._ahead[target] = length, 0
        if self._mtp is not None:
            self._mtp.rows.copy(source, target, length)

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        check_read(self.capabilities, self._written.__getitem__, slot, start, end)
        assert self._host_kv is not None, "checked"
        if self._mtp is not None:
            self._mtp.fill()
        return self._host_kv.read(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        count = check_write(self.capabilities, self._written.__getitem__, slot, start, len(rows))
        self._written[slot] = start + count  # if the write fails half-way, a reset clears all of it
        assert self._host_kv is not None, "checked"
        self._known.rows_written(slot)
        if self._windows is not None:
            self._windows.rows_written(slot, start + count)
        self._host_kv.write(slot, start, start + count, rows)
        if self._mtp is not None:
            self._mtp.rows.forget(slot)

    def read_state(self, slot: int, length: int | None = None) -> bytes | memoryview:
        if self._windows is not None:
            return self._windows.read(slot, self._written, length)
        back = 0 if length is None else self._written[slot] - length
        self._known.check_read(slot, back)
        assert self._states is not None, "checked"
        return self._states.read(slot, back)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        if self._windows is not None:
            self._windows.write(slot, self._written, state)
            return
        self._known.check_write(slot, len(state))
        assert self._states is not None, "checked"
        self._states.write(slot, state)
        self._known.state_written(slot)

    def reset(self, slot: int) -> None:
        if not 0 <= slot < self._cache.slots:
            raise ValueError(f"slot: {slot} is not one of {self._cache.slots}")
        if self._mtp is not None:
            self._mtp.rows.forget(slot)
        rows, self._written[slot], self._ahead[slot] = max(self._written[slot], self._ahead[slot]), 0, 0
        self._known.reset(slot)
        if self._windows is not None:
            self._windows.reset(slot)
        if self._states is not None:
            self._states.clear(slot)
        if not rows:
            return
        if self._host_kv is None:
            self._call("copy", *self._kv_views, slot, slot, 0)
        else:
            self._host_kv.forget(slot, rows)

    def memory(self) -> dict[str, int]:
        """Return the bytes of packed weights, KV cache, recurrent states and a vision tower if there are any, and all
        buffers that the device's allocator has allocated."""
        states = {} if self._states is None else {"states": self._states.nbytes}
        kept = {"weights": self._archive.nbytes, "kv": sum(each.nbytes for each in self._kv)} | states
        vision = {} if self._vision is None else self._vision.memory()
        return kept | vision | {"allocated": self._device.allocated}

    def settle(self) -> None:
        self.graphs.settle()

    def close(self) -> None:
        self.graphs.close()
        self._sampler.forget()
        self._inputs_of.clear()
        self._decode_inputs.clear()
        self._adapters.close()
        if self._mtp is not None:
            self._mtp.close()
            self._mtp = None
        if self._vision is not None:
            self._vision.close()
            self._vision = None
        del self._windows, self._host_kv, self._kv, self._states, self._no_rows
        self._device.close()
        # After the device's threads have ended: who drops the last reference to the weights calls into Python.
        self._archive.close()
        del self._archive

    def _run_inputs(self, runs: Sequence[SlotRun], size: int) -> list[rt.HalBufferView | int]:
        """Return the inputs of a graph of `size` rows, for one run or for the blocks of several."""
        block = self._plan.block or size
        shape = (size // block, block)
        tokens = np.zeros(shape, np.int32)
        kv_rows = np.full(shape, self._cache.spare_row, np.int32)
        positions = np.zeros((3, *shape) if any(run.axes is not None for run in runs) else shape, np.int64)
        slots = np.full(shape[0], runs[0].slot, np.int32)
        for row, run in enumerate(runs):
            count = len(run.tokens)
            tokens[row, :count] = run.tokens if run.embeddings is None else [max(token, -1) for token in run.tokens]
            kv_rows[row, :count] = np.arange(run.start, run.start + count)
            given = run.positions
            if run.axes is None:
                positions[..., row, :count] = np.arange(run.position, run.position + count) if given is None else given
            else:
                positions[:, row, :count] = run.axes
            slots[row] = run.slot
            self._written[run.slot] = max(self._written[run.slot], run.start + count)
        return self._inputs(tokens, positions, kv_rows, slots)

    def _adapters_of(self, kind: str, runs: Sequence[SlotRun], size: int) -> list[rt.HalBufferView]:
        """Return the last input of a graph of `size` rows whose rows may have adapters; none of others."""
        if not kind.startswith(ADAPTED):
            return []
        return [self._adapters.input(size // (self._plan.block or size), range(len(runs)), runs)]

    def _given_rows(self, runs: Sequence[SlotRun], size: int) -> NDArray[np.float32]:
        """Return the embeddings of the rows without a token, and zeros for the others: float32 [sequences, rows,
        values], each of their parts padded."""
        block, parts, width = self._plan.block or size, self._plan.embedded_parts, self.capabilities.embedding_width
        rows = np.zeros((size // block, block, parts, self._width), np.float32)
        ids, given = np.zeros(block, np.int32), np.zeros((block, width), np.float32)
        for row, run in enumerate(runs):
            if run.embeddings is not None:
                count = len(run.tokens)
                given[:count] = 0
                run.embeddings.put(run.tokens, ids[:count], given[:count])
                rows[row, :count, :, : width // parts] = given[:count].reshape(count, parts, -1)
        return rows.reshape(size // block, block, -1)

    def _inputs(
        self, tokens: NDArray[Any], positions: NDArray[Any], kv_rows: NDArray[Any], slots: NDArray[Any]
    ) -> list[rt.HalBufferView | int]:
        angles = self._angles.at(positions) if positions.ndim == tokens.ndim else self._angles.at_axes(positions)
        values = (tokens, *angles, kv_rows, slots)
        if tokens.shape not in self._inputs_of:
            self._inputs_of[tokens.shape] = [self._device.input(each.shape, each.dtype.name) for each in values]
        given = zip(self._inputs_of[tokens.shape], values, strict=True)
        arguments = [*(each.put(value) for each, value in given), *self._kept]
        if self._states is not None:
            arguments += self._states.prompt_places(slots, kv_rows < self._cache.attended)
        return arguments

    @property
    def _kept(self) -> list[rt.HalBufferView]:
        """The buffers that stay on the device, as graphs take them."""
        return self._kv_views if self._states is None else [*self._kv_views, self._states.view]

    @property
    def _kv_views(self) -> list[rt.HalBufferView]:
        """The arrays of the KV cache, as graphs take them."""
        return [each.view for each in self._kv]

    def _call(self, name: str, *arguments: rt.HalBufferView | int) -> Results:
        return self.graphs[name].call(name, *arguments)


def _rows_of(chunk: Chunk, last: SampleSpec | None = None) -> list[DecodeRow]:
    """Return the rows of a chunk as those of a decode step; the last one is sampled by `last`."""
    none = SampleSpec(Sampling(), 0)
    # Those of a token are the same on all axes.
    positions = [
        chunk.position_at(at) if chunk.axes is None else int(chunk.axes[0, at]) for at in range(len(chunk.tokens))
    ]
    rows = [
        DecodeRow(chunk.slot, token, chunk.start + at, positions[at], none, chunk.adapter)
        for at, token in enumerate(chunk.tokens[:-1])
    ]
    end = len(rows)
    final = DecodeRow(chunk.slot, chunk.tokens[-1], chunk.start + end, positions[end], last or none, chunk.adapter)
    return [*rows, final]


def _rope_table(plan: GraphPlan, context: int) -> RopeTable:
    """Return the angles of RoPE, with the axes of M-RoPE if the model has a vision tower that needs them."""
    frequencies, factors = rope_frequencies(plan.config, context)
    axes = None
    if plan.vision is not None and plan.vision.mrope:
        axes = mrope_axes(plan.vision.mrope, len(frequencies), interleaved=plan.vision.mrope_interleaved)
    return RopeTable(frequencies, factors, context, axes)
