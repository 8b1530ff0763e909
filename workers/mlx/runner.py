"""The MLX runner: mlx-lm's models and loaders, a KV cache per slot, and one ragged forward for all rows of a step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import full_layers
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import (
    AttentionReader,
    Chunk,
    DecodeRow,
    DraftHead,
    NotFiniteError,
    check_hidden,
    check_rows,
    check_specs,
    check_targets,
    chunks_of,
)
from workers.load_options import LoadOptions, Progress
from workers.mlx.execution.forward import Forward
from workers.mlx.execution.slot_memory import SlotMemory
from workers.mlx.given_rows import GivenColumns, GivenRows
from workers.mlx.loading.parts import RunnerParts, load_parts
from workers.mlx.mtp import FILL_ROWS, MlxMtpHead
from workers.mlx.quantized_rows import dequantize_rows
from workers.mlx.runtime.device import OwnedDevice
from workers.mlx.runtime.sampler import MlxSampler
from workers.mlx.vision.encoder import MlxVisionEncoder
from workers.mlx.vision.language_model import see_images
from workers.precision import level_bits
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec, with_masks
from workers.vision.encoder import VisionEncoder

REPORTED_ROWS = 32
"""Rows whose logits are computed at once for their log-probabilities."""


class MlxRunner:
    """`workers.engine.runner.Runner` on MLX.

    Owns the model and the slots' memory. Only the thread that loaded it may use it.
    """

    def __init__(self, parts: RunnerParts) -> None:
        config, capabilities, tower = parts.config, parts.capabilities, parts.tower
        self.capabilities = capabilities
        self.adapter_slots = parts.adapter_slots
        """See `workers.engine.adapters.adapter_slots.HoldsAdapters`."""
        self._config = config
        self._owner = OwnedDevice(parts.device)
        self._kv_bits = level_bits(parts.options.kv_dtype)
        self._slots = SlotMemory(config, capabilities, parts.options.kv_dtype, parts.ring)
        given = GivenColumns(config.hidden_size)
        self._vision = None
        if tower is not None:
            scale = see_images(parts.model, config, tower.config, given, tower.padding)
            self._vision = MlxVisionEncoder(tower, self._owned, scale)
        elif capabilities.embedding_width:
            GivenRows.under(parts.model.model, given)
        self._forward = Forward(
            parts.model,
            config,
            capabilities,
            parts.device,
            self._slots,
            kv_bits=self._kv_bits,
            given=given,
            seen=None if tower is None else tower.config,
            adapters=parts.adapters,
        )
        self._sampler = MlxSampler(capabilities.vocab_size)
        layers = full_layers(config.plan) if parts.options.attention else ()
        self._attention = AttentionReader(layers, self._queries, self._keys) if layers else None
        self._mtp = None
        if config.mtp:
            self._mtp = MlxMtpHead(
                capabilities.slots,
                self._forward.head_rows,
                lambda hidden, specs: self._sampler.sample(self._forward.logits_of_normed(hidden), specs),
                self._slots.kv,
                self._owned,
            )
            self._slots.head_rows = self._mtp.rows

    @classmethod
    def load(cls, path: Path, config: ModelConfig, options: LoadOptions, progress: Progress) -> "MlxRunner":
        """Load a checkpoint in the calling thread, which owns the runner from then on.

        The device is "cpu", "gpu" or "" for the best there is. Nothing is compiled to disk and MLX sizes its own
        threads, so `cache_dir` and `threads` have no effect. `progress` counts tensors. Raises `CheckpointError` for
        what cannot be served, `LoadRefused` for a device that is not there.
        """
        return cls(load_parts(path, config, options, progress))

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
            hidden = self._computed(chunks)
            ends = accumulate(len(chunk.tokens) for chunk in chunks)
            wanted = [(end - 1, spec) for end, spec in zip(ends, specs, strict=True) if spec is not None]
            mx.eval(self._slots.arrays, [hidden] if self._mtp is not None else [])
            if self._mtp is not None:
                self._mtp.fill(FILL_ROWS)
            if not wanted:
                return [None] * len(chunks)
            rows = mx.array([row for row, _ in wanted], dtype=mx.int32)
            tokens = iter(
                self._sampler.sample(self._forward.logits(hidden[rows]), with_masks(spec for _, spec in wanted))
            )
            return [None if spec is None else next(tokens) for spec in specs]

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        if not rows:
            return []
        check_rows(self.capabilities, self._slots.written, rows)
        with self._owned():
            hidden = self._computed(chunks_of(rows), prompt=False)
            logits, specs = self._forward.logits(hidden), [row.sample for row in rows]
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
            hidden = self._computed([chunk])
            for at in range(0, len(chunk.tokens), REPORTED_ROWS):
                logits = self._forward.logits(hidden[at : at + REPORTED_ROWS])
                if not mx.isfinite(logits.max(axis=-1)).all().item():
                    raise NotFiniteError
                if some := targets[at : at + REPORTED_ROWS]:
                    reports += self._sampler.reports(logits[: len(some)], some)
            mx.eval(self._slots.kv.arrays)
            # By a call of one row, as `prefill` makes it.
            last = mx.array([len(chunk.tokens) - 1], dtype=mx.int32)
            (token,) = (
                [None] if spec is None else self._sampler.sample(self._forward.logits(hidden[last]), with_masks([spec]))
            )
        return token, reports

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        with self._owned():
            logits = np.array(self._forward.logits(self._computed([chunk])))
        if not np.isfinite(logits.max(axis=-1)).all():
            raise NotFiniteError
        return logits

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        check_hidden(self.capabilities, chunks)
        self._sampler.forget()
        with self._owned():
            states = self._computed(chunks)
            mx.eval(self._slots.arrays, [states] if self._mtp is not None else [])
            if self._mtp is not None:
                self._mtp.fill(FILL_ROWS)
            rows = np.array(self._forward.normed(states).astype(mx.float32))
        ends = accumulate(len(chunk.tokens) for chunk in chunks)
        return [rows[end - len(chunk.tokens) : end] for chunk, end in zip(chunks, ends, strict=True)]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        with self._owned():
            self._slots.copy_prefix(source, target, length)

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        with self._owned():
            if self._mtp is not None:
                self._mtp.fill()
            return self._slots.read_rows(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        with self._owned():
            self._slots.write_rows(slot, start, rows)

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        with self._owned():
            return self._slots.read_state(slot, length)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        with self._owned():
            self._slots.write_state(slot, state)

    def reset(self, slot: int) -> None:
        with self._owned():
            self._slots.reset(slot)

    def memory(self) -> dict[str, int]:
        """Bytes that are allocated now, by purpose."""
        weights = sum(int(array.nbytes) for _, array in tree_flatten(self._forward.model.parameters()))
        tower = {} if self._vision is None else self._vision.memory()
        return {"weights": weights, "kv": self._slots.nbytes, **tower}

    def settle(self) -> None:
        """Return at once: nothing is prepared in the background."""

    def close(self) -> None:
        with self._owned():
            self._forward.model = None
            self._vision = None
            self._owner.closed = True
            self._mtp = None
            self._sampler.forget()
            self._slots.kv.reset_all()
            mx.clear_cache()

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """Select the device, for the thread that owns it. Slots whose rows a failed call has lost are empty
        afterwards."""
        with self._owner.selected():
            try:
                yield
            except BaseException:
                self._slots.recover()
                raise

    def _queries(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        with self._owned():
            self._sampler.forget()
            queries: list[mx.array] = []
            self._computed([chunk], queries)
            attend = [number for number, layer in enumerate(self._config.plan) if layer.kind == "attention"]
            layers = [queries[attend.index(number)] for number in full_layers(self._config.plan)]
            mx.eval(self._slots.kv.arrays, layers)
            return [np.array(layer) for layer in layers]

    def _keys(self, slot: int, layer: int, end: int) -> NDArray[np.float32]:
        with self._owned():
            capacity, place = self._slots.kv.place(slot)
            number = self._config.kv_place(layer)
            keys = self._slots.kv.slab(capacity).buffers[number][0][place : place + 1, :, :end]
            if self._kv_bits:
                keys = dequantize_rows(keys, self._kv_bits, mx.float32)
            return np.array(keys[0].astype(mx.float32))

    def _computed(
        self, chunks: Sequence[Chunk], queries: list[mx.array] | None = None, *, prompt: bool = True
    ) -> mx.array:
        """Compute chunks as `Forward.rows` does, and let the head for multi-token prediction follow."""
        hidden = self._forward.rows(chunks, queries, prompt=prompt)
        if self._mtp is not None:
            self._mtp.computed(chunks, hidden, prompt=prompt)
            for chunk in chunks:
                # The head has rows of tokens at consecutive positions only.
                if chunk.positions is not None or chunk.axes is not None or has_rows(chunk.tokens):
                    self._mtp.rows.forget(chunk.slot)
        return hidden
