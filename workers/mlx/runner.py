"""The MLX runner: mlx-lm's models and loaders, a KV cache per slot, and one ragged forward for all rows of a step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import full_layers
from workers.checkpoints.checkpoint import ModelConfig, Weights, open_weights
from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.lora.adapters_digest import adapters_digest
from workers.checkpoints.low_bits.low_bit_weights import LowBitWeights
from workers.checkpoints.weight_size import kv_row_bytes, layer_row_bytes, weight_bytes
from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import (
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
from workers.engine.speculation.mtp.head_rows import HeadRun
from workers.host.memory import Needed, free_bytes, spare_bytes
from workers.load_options import LoadOptions, Progress
from workers.mlx.attention import AttentionGroup, LayerCache
from workers.mlx.given_rows import GivenColumns, GivenRows
from workers.mlx.hybrid.rollback import rollback_rows
from workers.mlx.hybrid.states import RecurrentStates, StateCache
from workers.mlx.kv import GROWTH, KvCache, RowShape
from workers.mlx.loading.model import load_architecture, quantize_matrices
from workers.mlx.lora.adapter_store import LinearAdapterStore, adapter_places
from workers.mlx.lora.row_adapters import StepAdapters, add_row_adapters
from workers.mlx.modules.parts import cast_parameters
from workers.mlx.mtp import FILL_ROWS, MlxMtpHead
from workers.mlx.probe import verifies_drafts
from workers.mlx.quantized_rows import dequantize_rows
from workers.mlx.row_groups import Segment, group_segments, rows_as_given
from workers.mlx.rows_format import rows_format
from workers.mlx.runtime.device import (
    OwnedDevice,
    adds_in_order,
    choose_device,
    evaluate_weights,
    maybe_set_recommended_wired_limit,
)
from workers.mlx.runtime.sampler import MlxSampler
from workers.mlx.transposed import transpose_matrices
from workers.mlx.vision.encoder import MlxTower, MlxVisionEncoder
from workers.mlx.vision.language_model import check_image_rows, positions_of, see_images
from workers.mlx.vision.loading import open_tower
from workers.precision import KvDtype, Quantize, level_bits
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec, with_masks
from workers.vision.encoder import VisionEncoder

PREFILL_CHUNKS = (32, 128, 512)
DRAFTED_ROWS = 8
"""Rows of drafted tokens that a decode step may have beside one of each slot."""
REPORTED_ROWS = 32
"""Rows whose logits are computed at once for their log-probabilities."""
CPU_PADDING = 64
"""Most rows by which the lengths of decode rows that attend together may differ on a CPU, where a masked key costs as
much as any other. On a GPU a call costs more than the keys of a whole step of growth. 0 if sums are not in order."""
STEPS_PER_CLEAR = 256
"""Steps between two releases of MLX's buffer cache: as lengths change, buffers of old sizes stay in it unused."""


class MlxRunner:
    """`workers.engine.runner.Runner` on MLX.

    Owns the model and the slots' KV. Only the thread that loaded it may use it.
    """

    def __init__(
        self,
        model: Any,
        config: ModelConfig,
        capabilities: RunnerCapabilities,
        device: mx.Device,
        kv_dtype: KvDtype = "auto",
        *,
        attention: bool = False,
        tower: MlxTower | None = None,
        adapters: StepAdapters | None = None,
        adapter_slots: LinearAdapterStore | None = None,
    ) -> None:
        self.capabilities = capabilities
        self._adapters = adapters
        self.adapter_slots = adapter_slots
        """See `workers.engine.adapters.adapter_slots.HoldsAdapters`."""
        self._model = model
        self._config = config
        self._owner = OwnedDevice(device)
        self._kv_bits = level_bits(kv_dtype)
        dtype = mx.int8 if self._kv_bits else getattr(mx, capabilities.dtype)
        self._kv = KvCache(_row_shapes(config, dtype.size, kv_dtype), capabilities.slots, dtype)
        kind, keeps = getattr(mx, capabilities.dtype), capabilities.rollback_rows > 0
        self._recurrent = RecurrentStates(config, capabilities.slots, kind, keeps=keeps)
        self._states = SlotStates(capabilities)
        self._cpu = device.type == mx.cpu
        self._in_order = adds_in_order(device)
        self._padding = (CPU_PADDING if self._in_order else 0) if self._cpu else GROWTH
        self._given = GivenColumns(config.hidden_size)
        self._seen = None if tower is None else tower.config
        self._vision = None
        if tower is not None:
            scale = see_images(model, config, tower.config, self._given, tower.padding)
            self._vision = MlxVisionEncoder(tower, self._owned, scale)
        elif capabilities.embedding_width:
            GivenRows.under(model.model, self._given)
        self._steps = 0
        self._sampler = MlxSampler(capabilities.vocab_size)
        layers = full_layers(config.plan) if attention else ()
        self._attention = AttentionReader(layers, self._queries, self._keys) if layers else None
        self._mtp = None
        if config.mtp:
            self._mtp = MlxMtpHead(
                capabilities.slots,
                self._mtp_hidden,
                lambda hidden, specs: self._sampler.sample(self._logits(hidden), specs),
                self._kv,
                self._owned,
            )

    @classmethod
    def load(cls, path: Path, config: ModelConfig, options: LoadOptions, progress: Progress) -> "MlxRunner":
        """Load a checkpoint in the calling thread, which owns the runner from then on.

        The device is "cpu", "gpu" or "" for the best there is. Nothing is compiled to disk and MLX sizes its own
        threads, so `cache_dir` and `threads` have no effect. `progress` counts tensors. Raises `CheckpointError` for
        what cannot be served, `LoadRefused` for a device that is not there.
        """
        context, quantize = config.choose_context(options.context), options.quantize
        config.check_kv_dtype(options.kv_dtype)
        name, chosen = choose_device(options.device)
        if not verifies_drafts(name):  # drafts of the head could not be verified
            config = config.without_mtp()
        if name == "gpu":
            # macOS pages out what is not wired, and a model that is paged decodes many times slower.
            maybe_set_recommended_wired_limit()
        kind = config.dtype if options.dtype == "auto" else options.dtype
        row_bytes = kv_row_bytes(config, getattr(mx, kind).size, options.kv_dtype)
        free = free_bytes()
        vision = open_tower(path, kind, options.mmproj) if options.vision else None
        weights = weight_bytes(open_weights(path, quantize), kind, quantize, mtp=config.mtp)
        held = weights + (0 if vision is None else vision.nbytes)
        places = adapter_places(config, options)
        held += 0 if places is None else places.nbytes(getattr(mx, kind).size)
        later = max(0, spare_bytes() + options.leaving_bytes - options.reserved_bytes)
        state_bytes = RecurrentStates(config, 1, getattr(mx, kind)).slot_bytes if config.state_layers else 0
        verifies = verifies_drafts(name)
        rollback = rollback_rows(config) if verifies and config.state_layers else 0
        # Those before the rows of a step beside those of the slots.
        states = state_bytes * (options.slots + (options.slots + DRAFTED_ROWS if rollback else 0))
        needed = Needed.of(held, row_bytes, options.slots, context, options.kv_bytes, later, options.workers, states)
        quantizable = config.quantization is None
        needed.check(free, quantize, quantizable=quantizable, leaving=options.leaving_bytes)
        step, modules = StepAdapters() if options.lora_modules or places else None, options.lora_modules
        stores: list[LinearAdapterStore] = []

        def added(model: Any) -> None:
            if places is not None:
                stores.append(LinearAdapterStore(model, places, step or StepAdapters(), chosen))
            elif step is not None:
                add_row_adapters(model, config, modules, options.max_lora_rank, step)

        with mx.stream(chosen):
            compiled = chosen.type != mx.cpu
            model = load_architecture(
                path, config, context, quantize, compiled=compiled, adapter=options.adapter, added=added
            )
            if config.state_layers and name == "cpu":
                # Else its modules would run a C++ compiler and load the result from a folder that others can write to.
                mx.disable_compile()
            if quantize != "none":
                quantize_matrices(path, model, 8 if quantize == "int8" else 4)
            cast_parameters(model, getattr(mx, kind))
            if adds_in_order(chosen):
                transpose_matrices(model)
            evaluate_weights(model, progress)
            for store in stores:
                store.load(modules)
            tower = None if vision is None else vision.load(chosen)
        width = config.hidden_size if config.choose_embeddings(options.embeddings) else 0
        if tower is not None:
            width = tower.config.choose_width(width)
        capabilities = RunnerCapabilities(
            backend="mlx",
            device=name,
            dtype=kind,
            slots=options.slots,
            context=context,
            vocab_size=config.vocab_size,
            prefill_chunks=tuple(sorted({min(chunk, context) for chunk in PREFILL_CHUNKS})),
            # On a CPU, as the gate tests: under Linux MLX adds one term after the other there. Kernels of other devices
            # change with the number of rows.
            exact_rows=name == "cpu",
            decode_rows=options.slots + DRAFTED_ROWS if verifies and (rollback or not state_bytes) else 0,
            row_bytes=row_bytes,
            weight_bytes=weights,
            kv_rows=needed.kv // row_bytes,
            quantization=_quantization(open_weights(path, quantize), config, quantize),
            rows_format=rows_format(
                path,
                kind,
                quantize,
                options.kv_dtype,
                context,
                name,
                adapter=options.adapter,
                adapters=adapters_digest(modules),
                mtp=config.mtp,
            ),
            adapters=tuple(each for each, _ in modules),
            adapter_places=options.runtime_loras,
            embedding_width=width,
            state_bytes=state_bytes,
            rollback_rows=rollback,
            bidirectional_images=tower is not None and tower.config.bidirectional != "none",
            hidden_width=config.hidden_size,
        )
        return cls(
            model,
            config,
            capabilities,
            chosen,
            options.kv_dtype,
            attention=options.attention,
            tower=tower,
            adapters=step,
            adapter_slots=stores[0] if stores else None,
        )

    @property
    def graphs_failed(self) -> int:
        """Always 0: nothing is prepared in the background."""
        return 0

    def fits(self, rows: int) -> bool:
        return rows <= self.capabilities.decode_rows

    @property
    def draft_head(self) -> DraftHead | None:
        return self._mtp

    @property
    def vision(self) -> VisionEncoder | None:
        """See `Runner.vision`."""
        return self._vision

    @property
    def attention(self) -> AttentionReader | None:
        return self._attention

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        check_specs(self.capabilities, chunks, specs)
        self._sampler.forget()
        with self._owned():
            hidden = self._forward(chunks)
            ends = accumulate(len(chunk.tokens) for chunk in chunks)
            wanted = [(end - 1, spec) for end, spec in zip(ends, specs, strict=True) if spec is not None]
            mx.eval(self._kv.arrays, self._recurrent.arrays, [hidden] if self._mtp is not None else [])
            if self._mtp is not None:
                self._mtp.fill(FILL_ROWS)
            if not wanted:
                return [None] * len(chunks)
            rows = mx.array([row for row, _ in wanted], dtype=mx.int32)
            tokens = iter(self._sampler.sample(self._head(hidden[rows]), with_masks(spec for _, spec in wanted)))
            return [None if spec is None else next(tokens) for spec in specs]

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        if not rows:
            return []
        check_rows(self.capabilities, self._kv.lengths, rows)
        with self._owned():
            hidden = self._forward(chunks_of(rows), prompt=False)
            logits, specs = self._head(hidden), [row.sample for row in rows]
            if any(spec.late_mask is not None for spec in specs):
                mx.async_eval(logits)  # type: ignore[no-untyped-call]  # while the masks are computed
            tokens = self._sampler.sample(logits, with_masks(specs))
            if self._mtp is not None:
                self._mtp.fill(FILL_ROWS, prompt=False)
            return tokens

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        with self._owned():
            return self._sampler.logprobs(rows)

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """The smallest chunk sizes."""
        return self.capabilities.prefill_chunks[:2]

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        check_targets(self.capabilities, chunk, targets)
        self._sampler.forget()
        reports: list[RowLogprobs] = []
        with self._owned():
            hidden = self._forward([chunk])
            for at in range(0, len(chunk.tokens), REPORTED_ROWS):
                logits = self._head(hidden[at : at + REPORTED_ROWS])
                if not mx.isfinite(logits.max(axis=-1)).all().item():
                    raise NotFiniteError
                if some := targets[at : at + REPORTED_ROWS]:
                    reports += self._sampler.reports(logits[: len(some)], some)
            mx.eval(self._kv.arrays)
            # By a call of one row, as `prefill` makes it.
            last = mx.array([len(chunk.tokens) - 1], dtype=mx.int32)
            (token,) = [None] if spec is None else self._sampler.sample(self._head(hidden[last]), with_masks([spec]))
        return token, reports

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        with self._owned():
            logits = np.array(self._head(self._forward([chunk])))
        if not np.isfinite(logits.max(axis=-1)).all():
            raise NotFiniteError
        return logits

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        check_hidden(self.capabilities, chunks)
        self._sampler.forget()
        with self._owned():
            states = self._forward(chunks)
            mx.eval(self._kv.arrays, self._recurrent.arrays, [states] if self._mtp is not None else [])
            if self._mtp is not None:
                self._mtp.fill(FILL_ROWS)
            rows = np.array(self._normed(states).astype(mx.float32))
        ends = accumulate(len(chunk.tokens) for chunk in chunks)
        return [rows[end - len(chunk.tokens) : end] for chunk, end in zip(chunks, ends, strict=True)]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        with self._owned():
            check_copy(self.capabilities, self._kv.lengths.__getitem__, source, target, length)
            written = self._kv.lengths[source]
            self._kv.copy_prefix(source, target, length)
            if self.capabilities.state_bytes:
                self._copy_state(source, target, length, written)
            if self._mtp is not None:
                self._mtp.rows.copy(source, target, length)

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        with self._owned():
            check_read(self.capabilities, self._kv.lengths.__getitem__, slot, start, end)
            if self._mtp is not None:
                self._mtp.fill()
            return self._kv.read(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        with self._owned():
            count = check_write(self.capabilities, self._kv.lengths.__getitem__, slot, start, len(rows))
            self._kv.write(slot, count, rows)
            self._states.rows_written(slot)
            if self._mtp is not None:
                self._mtp.rows.forget(slot)

    def _copy_state(self, source: int, target: int, length: int, written: int) -> None:
        """Copy the recurrent state, if it goes along with so many of the `written` rows."""
        back = self._states.copied(source, target, length, written)
        if back:
            self._recurrent.take_back(source, back, target)
            self._recurrent.forget(target)
        elif back is not None and source != target:
            self._recurrent.copy(source, target)
        elif not length:
            self._recurrent.reset(target)

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        with self._owned():
            back = 0 if length is None else self._kv.lengths[slot] - length
            self._states.check_read(slot, back)
            return self._recurrent.read(slot, back)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        with self._owned():
            self._states.check_write(slot, len(state))
            self._recurrent.write(slot, state)
            self._states.state_written(slot)

    def reset(self, slot: int) -> None:
        with self._owned():
            self._kv.reset(slot)
            if self.capabilities.state_bytes:
                self._recurrent.reset(slot)
                self._states.reset(slot)
            if self._mtp is not None:
                self._mtp.rows.forget(slot)

    def memory(self) -> dict[str, int]:
        """Bytes that are allocated now, by purpose."""
        weights = sum(int(array.nbytes) for _, array in tree_flatten(self._model.parameters()))
        tower = {} if self._vision is None else self._vision.memory()
        return {"weights": weights, "kv": self._kv.nbytes + self._recurrent.nbytes, **tower}

    def settle(self) -> None:
        """Return at once: nothing is prepared in the background."""

    def close(self) -> None:
        with self._owned():
            self._model = None
            self._vision = None
            self._owner.closed = True
            self._mtp = None
            self._sampler.forget()
            self._kv.reset_all()
            mx.clear_cache()

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Select the device, for the thread that owns it. Slots whose rows a failed call has lost are empty
        afterwards."""
        with self._owner.selected():
            try:
                yield
            except BaseException:
                self._kv.recover()
                if not self._recurrent.recover():
                    self._kv.reset_all()
                    self._states = SlotStates(self.capabilities)
                raise

    def _queries(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        with self._owned():
            self._sampler.forget()
            queries: list[mx.array] = []
            self._forward([chunk], queries)
            attend = [number for number, layer in enumerate(self._config.plan) if layer.kind == "attention"]
            layers = [queries[attend.index(number)] for number in full_layers(self._config.plan)]
            mx.eval(self._kv.arrays, layers)
            return [np.array(layer) for layer in layers]

    def _keys(self, slot: int, layer: int, end: int) -> NDArray[np.float32]:
        with self._owned():
            capacity, place = self._kv.place(slot)
            number = self._config.kv_place(layer)
            keys = self._kv.slab(capacity).buffers[number][0][place : place + 1, :, :end]
            if self._kv_bits:
                keys = dequantize_rows(keys, self._kv_bits, mx.float32)
            return np.array(keys[0].astype(mx.float32))

    def _forward(
        self, chunks: Sequence[Chunk], queries: list[mx.array] | None = None, *, prompt: bool = True
    ) -> mx.array:
        """Write the KV of chunks, of prompts or not, and return the last hidden state of every row, [rows, hidden], not
        yet evaluated. `queries` as in `_hidden`."""
        check_chunks(self.capabilities, self._kv.lengths.__getitem__, chunks)
        check_image_rows(self._seen, chunks)
        self._states.check_call(self._kv.lengths, chunks, decode=not prompt)
        if self.capabilities.state_bytes:
            self._take_back(chunks)
            self._recurrent.step(chunks, decode=not prompt)
        self._kv.reserve({chunk.slot: (chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks})
        groups, order = self._grouped(chunks)
        hidden = self._hidden([chunks[index] for index in order], groups, queries, decode=not prompt)
        for chunk in chunks:
            self._kv.lengths[chunk.slot] = chunk.start + len(chunk.tokens)
            if prompt:
                self._states.prefilled(chunk.slot)
            else:
                self._states.decoded(chunk.slot, len(chunk.tokens))
        self._steps += 1
        if self._steps % STEPS_PER_CLEAR == 0:
            mx.clear_cache()
        hidden = _as_given(hidden, chunks, order)
        if self._mtp is not None:
            self._mtp.computed(chunks, hidden, prompt=prompt)
            for chunk in chunks:
                # The head has rows of tokens at consecutive positions only.
                if chunk.positions is not None or chunk.axes is not None or has_rows(chunk.tokens):
                    self._mtp.rows.forget(chunk.slot)
        return hidden

    def _take_back(self, chunks: Sequence[Chunk]) -> None:
        """Give slots the states before rows that are computed again."""
        for chunk in chunks:
            if back := self._kv.lengths[chunk.slot] - chunk.start:
                self._recurrent.take_back(chunk.slot, back)

    def _grouped(self, chunks: Sequence[Chunk]) -> tuple[list[AttentionGroup], list[int]]:
        """Return the groups of chunks that attend together, and the indices of the chunks in their order."""
        segments = [
            Segment(chunk.start, len(chunk.tokens), *self._kv.place(chunk.slot), chunk.ends) for chunk in chunks
        ]
        grouped = group_segments(segments, self._padding)
        groups = [
            AttentionGroup(
                self._kv.slab(segments[indices[0]].capacity),
                [segments[at] for at in indices],
                by_kv_head=self._in_order,
                kv_bits=self._kv_bits,
            )
            for indices in grouped
        ]
        return groups, [index for indices in grouped for index in indices]

    def _mtp_hidden(self, runs: Sequence[HeadRun[mx.array]]) -> mx.array:
        """Write the KV of rows of the head for multi-token prediction, and return their normed hidden states."""
        chunks = [Chunk(run.slot, run.tokens, run.start, run.position) for run in runs]
        self._kv.reserve(
            {
                chunk.slot: (self._kv.lengths[chunk.slot], end)
                for chunk in chunks
                if (end := chunk.start + len(chunk.tokens)) > self._kv.lengths[chunk.slot]
            }
        )
        groups, order = self._grouped(chunks)
        ordered = [chunks[index] for index in order]
        self._given.clear()
        tokens = mx.array([token for chunk in ordered for token in chunk.tokens], dtype=mx.int32)[:, None]
        offset = positions_of(ordered)
        cache = LayerCache(self._config.kv_layers - 1, groups, offset, cpu=self._cpu)
        hidden = mx.concatenate([runs[index].hidden for index in order])[:, None]
        out = self._model.mtp(hidden, self._model.model.embed_tokens(tokens), cache)
        return _as_given(out[:, 0], chunks, order)

    def _hidden(
        self,
        chunks: Sequence[Chunk],
        groups: Sequence[AttentionGroup],
        queries: list[mx.array] | None = None,
        *,
        decode: bool = False,
    ) -> mx.array:
        """Write the KV of chunks in the order of their groups, and return their last hidden states. `queries` is given
        those of each layer."""
        tokens, offset = mx.array(self._tokens(chunks), dtype=mx.int32)[:, None], positions_of(chunks)
        caches = [
            LayerCache(
                self._config.kv_place(number),
                groups,
                offset,
                layer.window,
                cpu=self._cpu,
                queries=queries,
                writes=layer.kv_source is None,
                to_ends=self._sees_images_whole(layer.window),
            )
            if layer.kind == "attention"
            else StateCache(self._recurrent, self._config.state_index(number), chunks, decode=decode)
            for number, layer in enumerate(self._config.plan)
            if layer.kind != "none"
        ]
        if self._adapters is not None:
            self._adapters.set(chunks)
        hidden: mx.array = self._model.model(tokens, cache=caches)
        return hidden[:, 0]

    def _sees_images_whole(self, window: int | None) -> bool:
        """Return whether rows of an image attend to its later ones in a layer with this window."""
        kind = "none" if self._seen is None else self._seen.bidirectional
        return kind == "all" or (kind == "windowed" and window is not None)

    def _tokens(self, chunks: Sequence[Chunk]) -> list[int]:
        """Return the tokens of chunks, and give the embedding the rows among them, which are -1 each."""
        tokens = [token for chunk in chunks for token in chunk.tokens]
        self._given.clear()
        if not has_rows(tokens):
            return tokens
        ids = np.zeros(len(tokens), np.int32)
        rows = np.zeros((len(tokens), self.capabilities.embedding_width), np.float32)
        at = 0
        for chunk in chunks:
            part = slice(at, at := at + len(chunk.tokens))
            if chunk.embeddings is None:
                ids[part] = chunk.tokens
            else:
                chunk.embeddings.put(chunk.tokens, ids[part], rows[part])
        self._given.give(mx.array(rows), mx.array(ids < 0))
        known: list[int] = ids.tolist()
        return known

    def _head(self, hidden: mx.array) -> mx.array:
        """[rows, hidden] -> float32 logits [rows, vocab_size]."""
        return self._logits(self._normed(hidden))

    def _normed(self, hidden: mx.array) -> mx.array:
        """Return hidden states of `_forward` after the last norm, which they lack where a head drafts from them."""
        return hidden if self._mtp is None else self._model.model.norm.norm(hidden)

    def _logits(self, hidden: mx.array) -> mx.array:
        """Normed hidden states [rows, hidden] -> float32 logits [rows, vocab_size]."""
        head = getattr(self._model, "lm_head", None) or self._model.model.embed_tokens.as_linear
        logits: mx.array = head(hidden).astype(mx.float32)
        if self._config.logits_scaling != 1:
            logits = logits / self._config.logits_scaling
        if (cap := self._config.logit_cap) is not None:
            logits = mx.tanh(logits / cap) * cap
        return logits


def _as_given(hidden: mx.array, chunks: Sequence[Chunk], order: Sequence[int]) -> mx.array:
    """Return rows in the order of the chunks, which were computed in another one."""
    if list(order) == sorted(order):
        return hidden
    return hidden[mx.array(rows_as_given([len(chunk.tokens) for chunk in chunks], order), dtype=mx.int32)]


def _row_shapes(config: ModelConfig, item_bytes: int, kv_dtype: KvDtype) -> list[RowShape]:
    """Return the shape of a cache row of each layer that has keys and values, in elements of so many bytes."""
    found = []
    for layer in config.kv_owners:
        heads = config.kv_shape(layer).heads
        keys, values = (size // (heads * item_bytes) for size in layer_row_bytes(config, layer, item_bytes, kv_dtype))
        found.append(RowShape(heads, (keys, values)))
    return found


def _quantization(weights: Weights, config: ModelConfig, quantize: Quantize) -> str:
    if isinstance(weights, GgufWeights) and quantize == "none":
        return weights.widths()
    if isinstance(weights, LowBitWeights) and quantize == "none":
        return weights.widths(mlx=True)
    if config.quantization is not None:
        return config.quantization.widths
    return "" if quantize == "none" else quantize
