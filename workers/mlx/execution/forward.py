"""One ragged forward of the model over the rows of a call, and the head behind it."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import Chunk, RunnerCapabilities
from workers.engine.speculation.mtp.head_rows import HeadRun
from workers.mlx.attention import AttentionGroup, LayerCache
from workers.mlx.execution.slot_memory import SlotMemory
from workers.mlx.given_rows import GivenColumns
from workers.mlx.hybrid.states import StateCache
from workers.mlx.kv import GROWTH
from workers.mlx.lora.row_adapters import StepAdapters
from workers.mlx.row_groups import Segment, group_segments, rows_as_given
from workers.mlx.runtime.device import adds_in_order
from workers.mlx.vision.language_model import check_image_rows, positions_of
from workers.vision.config import VisionConfig

CPU_PADDING = 64
"""Most rows by which the lengths of decode rows that attend together may differ on a CPU, where a masked key costs as
much as any other. On a GPU a call costs more than the keys of a whole step of growth. 0 if sums are not in order."""
STEPS_PER_CLEAR = 256
"""Steps between two releases of MLX's buffer cache: as lengths change, buffers of old sizes stay in it unused."""


class Forward:
    """Runs an mlx-lm model whose attention and positions are Baton's."""

    def __init__(
        self,
        model: Any,
        config: ModelConfig,
        capabilities: RunnerCapabilities,
        device: mx.Device,
        slots: SlotMemory,
        *,
        kv_bits: int = 0,
        given: GivenColumns,
        seen: VisionConfig | None = None,
        adapters: StepAdapters | None = None,
    ) -> None:
        """`kv_bits` are those of quantized rows, 0 of plain ones. `given` is what the model's embedding reads rows of
        embeddings from, `seen` the vision tower whose rows it takes."""
        self.model = model
        self._config = config
        self._capabilities = capabilities
        self._slots = slots
        self._kv_bits = kv_bits
        self._given = given
        self._seen = seen
        self._adapters = adapters
        self._cpu = device.type == mx.cpu
        self._in_order = adds_in_order(device)
        self._padding = (CPU_PADDING if self._in_order else 0) if self._cpu else GROWTH
        self._steps = 0

    def rows(self, chunks: Sequence[Chunk], queries: list[mx.array] | None = None, *, prompt: bool = True) -> mx.array:
        """Write the KV of chunks, of prompts or not, and return the last hidden state of every row, [rows, hidden], not
        yet evaluated. `queries` is given those of each layer. Raises `ValueError` for chunks that the slots cannot
        take."""
        check_image_rows(self._seen, chunks)
        self._slots.prepare(chunks, decode=not prompt)
        groups, order = self._grouped(chunks)
        hidden = self._hidden([chunks[index] for index in order], groups, queries, decode=not prompt)
        self._slots.computed(chunks, decode=not prompt)
        self._steps += 1
        if self._steps % STEPS_PER_CLEAR == 0:
            mx.clear_cache()
        return _as_given(hidden, chunks, order)

    def head_rows(self, runs: Sequence[HeadRun[mx.array]]) -> mx.array:
        """Write the KV of rows of the head for multi-token prediction, and return their normed hidden states."""
        chunks = [Chunk(run.slot, run.tokens, run.start, run.position) for run in runs]
        written = self._slots.written
        self._slots.kv.reserve(
            {
                chunk.slot: (written[chunk.slot], end)
                for chunk in chunks
                if (end := chunk.start + len(chunk.tokens)) > written[chunk.slot]
            }
        )
        groups, order = self._grouped(chunks)
        ordered = [chunks[index] for index in order]
        self._given.clear()
        tokens = mx.array([token for chunk in ordered for token in chunk.tokens], dtype=mx.int32)[:, None]
        offset = positions_of(ordered)
        cache = LayerCache(self._config.kv_layers - 1, groups, offset, cpu=self._cpu)
        hidden = mx.concatenate([runs[index].hidden for index in order])[:, None]
        out = self.model.mtp(hidden, self.model.model.embed_tokens(tokens), cache)
        return _as_given(out[:, 0], chunks, order)

    def logits(self, hidden: mx.array) -> mx.array:
        """[rows, hidden] -> float32 logits [rows, vocab_size]."""
        return self.logits_of_normed(self.normed(hidden))

    def normed(self, hidden: mx.array) -> mx.array:
        """Return hidden states of `rows` after the last norm, which they lack where a head drafts from them."""
        return hidden if not self._config.mtp else self.model.model.norm.norm(hidden)

    def logits_of_normed(self, hidden: mx.array) -> mx.array:
        """Normed hidden states [rows, hidden] -> float32 logits [rows, vocab_size]."""
        head = getattr(self.model, "lm_head", None) or self.model.model.embed_tokens.as_linear
        logits: mx.array = head(hidden).astype(mx.float32)
        if self._config.logits_scaling != 1:
            logits = logits / self._config.logits_scaling
        if (cap := self._config.logit_cap) is not None:
            logits = mx.tanh(logits / cap) * cap
        return logits

    def _grouped(self, chunks: Sequence[Chunk]) -> tuple[list[AttentionGroup], list[int]]:
        """Return the groups of chunks that attend together, and the indices of the chunks in their order."""
        kv = self._slots.kv
        segments = [Segment(chunk.start, len(chunk.tokens), *kv.place(chunk.slot), chunk.ends) for chunk in chunks]
        grouped = group_segments(segments, self._padding)
        groups = [
            AttentionGroup(
                kv.slab(segments[indices[0]].capacity),
                [segments[at] for at in indices],
                by_kv_head=self._in_order,
                kv_bits=self._kv_bits,
            )
            for indices in grouped
        ]
        return groups, [index for indices in grouped for index in indices]

    def _hidden(
        self,
        chunks: Sequence[Chunk],
        groups: Sequence[AttentionGroup],
        queries: list[mx.array] | None,
        *,
        decode: bool,
    ) -> mx.array:
        """Write the KV of chunks in the order of their groups, and return their last hidden states."""
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
            else StateCache(self._slots.recurrent, self._config.state_index(number), chunks, decode=decode)
            for number, layer in enumerate(self._config.plan)
            if layer.kind != "none"
        ]
        if self._adapters is not None:
            self._adapters.set(chunks)
        hidden: mx.array = self.model.model(tokens, cache=caches)
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
        rows = np.zeros((len(tokens), self._capabilities.embedding_width), np.float32)
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


def _as_given(hidden: mx.array, chunks: Sequence[Chunk], order: Sequence[int]) -> mx.array:
    """Return rows in the order of the chunks, which were computed in another one."""
    if list(order) == sorted(order):
        return hidden
    return hidden[mx.array(rows_as_given([len(chunk.tokens) for chunk in chunks], order), dtype=mx.int32)]
