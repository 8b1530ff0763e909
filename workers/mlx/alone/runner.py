"""A runner for a model that only mlx-lm describes: one sequence at a time, by mlx-lm's own modules and caches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from workers.checkpoints.lone_config import LoneConfig
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
from workers.host.memory import Needed, free_bytes, spare_bytes
from workers.load_options import LoadOptions, Progress
from workers.mlx.alone.caches import SequenceCaches
from workers.mlx.alone.loading import load_lone_model
from workers.mlx.runtime.adapter import apply_adapter
from workers.mlx.runtime.device import (
    OwnedDevice,
    choose_device,
    evaluate_weights,
    maybe_set_recommended_wired_limit,
)
from workers.mlx.runtime.sampler import MlxSampler
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec, with_masks
from workers.vision.encoder import VisionEncoder

PREFILL_CHUNKS = (32, 128, 512)
REPORTED_ROWS = 32
"""Rows whose log-probabilities are computed at once."""
STEPS_PER_CLEAR = 256
"""Calls between two releases of MLX's buffer cache."""


class LoneRunner:
    """`workers.engine.runner.Runner` on MLX with one slot, for any model of mlx-lm.

    Owns the model and the caches of its sequence. Only the thread that loaded it may use it. Rows are not exact: how a
    model computes a chunk is not known, and a scan over the rows of a prompt adds in another order than steps do.
    """

    draft_head: DraftHead | None = None
    attention: AttentionReader | None = None
    vision: VisionEncoder | None = None
    graphs_failed = 0
    """Nothing is prepared in the background."""

    def __init__(
        self, model: Any, caches: SequenceCaches, capabilities: RunnerCapabilities, device: OwnedDevice
    ) -> None:
        """`caches` are empty."""
        self.capabilities = capabilities
        self._model = model
        self._caches = caches
        self._states = SlotStates(capabilities)
        self._owner = device
        self._sampler = MlxSampler(capabilities.vocab_size)
        self._steps = 0

    @classmethod
    def load(cls, path: Path, config: LoneConfig, options: LoadOptions, progress: Progress) -> "LoneRunner":
        """Load a checkpoint in the calling thread, which owns the runner from then on. Options as for
        `workers.mlx.runner.MlxRunner`, with one slot.

        Raises `CheckpointError` for a checkpoint that mlx-lm cannot load or compute, `LoadRefused` for an option that
        has no effect here and for a device that is not there, `MemoryRefused`.
        """
        config.check(
            kv_dtype=options.kv_dtype,
            window_cache=options.window_cache,
            dtype=options.dtype,
            embeddings=options.embeddings,
        )
        context = config.choose_context(options.context)
        name, chosen = choose_device(options.device)
        if name == "gpu":
            maybe_set_recommended_wired_limit()
        weights = config.weight_bytes(path, options.dtype)
        later = max(0, spare_bytes() + options.leaving_bytes - options.reserved_bytes)
        needed = Needed.of(weights, config.row_bytes, 1, context, options.kv_bytes, later, options.workers)
        needed.check(free_bytes(), options.quantize, quantizable=not config.quantized, leaving=options.leaving_bytes)
        device = OwnedDevice(chosen)
        with device.selected():
            if name == "cpu":
                # It would run a C++ compiler and load the result from a folder that other users can write to.
                mx.disable_compile()
            model = load_lone_model(path, options.dtype, options.quantize)
            if options.adapter is not None:
                apply_adapter(model, options.adapter)
            evaluate_weights(model, progress)
            caches = SequenceCaches(model)
            logits = config.tried(path, name, lambda: _probe(model, caches))
            row_bytes, state_bytes = caches.row_bytes, caches.state_bytes(PREFILL_CHUNKS[-1], context)
            caches.clear()
        capabilities = RunnerCapabilities(
            backend="mlx",
            device=name,
            dtype=options.dtype if options.dtype != "auto" else config.dtype,
            slots=1,
            context=context,
            vocab_size=logits.shape[-1],
            prefill_chunks=tuple(sorted({min(chunk, context) for chunk in PREFILL_CHUNKS})),
            row_bytes=row_bytes,
            weight_bytes=weights,
            quantization=config.widths if options.quantize == "none" else options.quantize,
            state_bytes=state_bytes,
            replays_steps=True,
        )
        return cls(model, caches, capabilities, device)

    def fits(self, rows: int) -> bool:
        return rows == 1

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        check_specs(self.capabilities, chunks, specs)
        self._sampler.forget()
        results: list[int | None] = []
        for chunk, spec in zip(chunks, specs, strict=True):
            with self._computing([chunk], decode=False):
                logits = self._forward(chunk.tokens)
                mx.eval(self._caches.arrays)
                results += [None] if spec is None else self._sampler.sample(_last(logits), with_masks([spec]))
        return results

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        if not rows:
            return []
        check_rows(self.capabilities, [self._caches.rows], rows)
        with self._computing(chunks_of(rows), decode=True):
            logits, specs = _last(self._forward((rows[0].token,))), [rows[0].sample]
            if specs[0].late_mask is not None:
                mx.async_eval(logits)  # type: ignore[no-untyped-call]  # while the mask is computed
            tokens = self._sampler.sample(logits, with_masks(specs))
            mx.eval(self._caches.arrays)
            return tokens

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        with self._owner.selected():
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
        with self._computing([chunk], decode=False):
            computed = self._forward(chunk.tokens)
            mx.eval(self._caches.arrays)
            for at in range(0, len(chunk.tokens), REPORTED_ROWS):
                logits = computed[0, at : at + REPORTED_ROWS].astype(mx.float32)
                if not mx.isfinite(logits.max(axis=-1)).all().item():
                    raise NotFiniteError
                if some := targets[at : at + REPORTED_ROWS]:
                    reports += self._sampler.reports(logits[: len(some)], some)
            (token,) = [None] if spec is None else self._sampler.sample(_last(computed), with_masks([spec]))
        return token, reports

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        with self._computing([chunk], decode=False):
            logits = np.array(self._forward(chunk.tokens)[0].astype(mx.float32))
        if not np.isfinite(logits.max(axis=-1)).all():
            raise NotFiniteError
        return logits

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """Raises `ValueError`: which of mlx-lm's modules computes the hidden states is not known."""
        check_hidden(self.capabilities, chunks)
        raise AssertionError("checked: the runner has no hidden states")

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        with self._owner.selected():
            check_copy(self.capabilities, lambda _: self._caches.rows, source, target, length)
            self._states.copied(source, target, length, self._caches.rows)
            if length:
                self._caches.truncate(length)
            else:
                self._caches.clear()

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        """Raise `ValueError`: the layout of rows is that of mlx-lm's caches."""
        check_read(self.capabilities, lambda _: self._caches.rows, slot, start, end)
        raise AssertionError("rows have no format")

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """Raise `ValueError` as `read_rows` does."""
        check_write(self.capabilities, lambda _: self._caches.rows, slot, start, len(rows))

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        """The state is that of caches that cannot be truncated, with zeros behind it."""
        with self._owner.selected():
            self._states.check_read(slot, 0 if length is None else self._caches.rows - length)
            state = self._caches.state
        size = self.capabilities.state_bytes
        if len(state) + 4 > size:
            raise ValueError(f"slot: a state of {len(state)} bytes is over its bound of {size}")
        return (len(state).to_bytes(4, "little") + state).ljust(size, b"\0")

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        self._states.check_write(slot, len(state))
        size = int.from_bytes(state[:4], "little")
        with self._owner.selected():
            self._caches.state = bytes(state[4 : 4 + size])
            self._states.state_written(slot)

    def reset(self, slot: int) -> None:
        with self._owner.selected():
            self._caches.clear()
            self._states.reset(slot)
            mx.clear_cache()

    def memory(self) -> dict[str, int]:
        """Bytes that are allocated now, by purpose."""
        weights = sum(int(array.nbytes) for _, array in tree_flatten(self._model.parameters()))
        return {"weights": weights, "kv": self._caches.nbytes}

    def settle(self) -> None:
        """Return at once: nothing is prepared in the background."""

    def close(self) -> None:
        with self._owner.selected():
            self._caches.caches, self._model = [], None
            self._sampler.forget()
            self._owner.closed = True
            mx.clear_cache()

    @contextmanager
    def _computing(self, chunks: Sequence[Chunk], *, decode: bool) -> Iterator[None]:
        """Check a call and select the device. A call that fails leaves no rows."""
        check_chunks(self.capabilities, lambda _: self._caches.rows, chunks)
        self._states.check_call([self._caches.rows], chunks, decode=decode)
        (chunk,) = chunks
        last = len(chunk.tokens) - 1
        if (chunk.position, chunk.position_at(last)) != (chunk.start, chunk.start + last):
            raise ValueError(
                f"position: {chunk.position} is not row {chunk.start}, as it is for a model that runs alone, or tokens "
                "after it are left out"
            )
        with self._owner.selected():
            try:
                self._caches.truncate(chunk.start)
                yield
            except BaseException:
                self._caches.clear()
                self._states.reset(0)
                raise
        if decode:
            self._states.decoded(0, 1)
        else:
            self._states.prefilled(0)

    def _forward(self, tokens: Sequence[int]) -> mx.array:
        """Compute rows behind those of the caches: logits [1, rows, vocab_size], not yet evaluated."""
        logits: mx.array = self._model(mx.array([list(tokens)], dtype=mx.int32), cache=self._caches.caches)
        self._caches.rows += len(tokens)
        self._steps += 1
        if self._steps % STEPS_PER_CLEAR == 0:
            mx.clear_cache()
        return logits


def _last(logits: mx.array) -> mx.array:
    """Return the last row of logits, [1, vocab_size] float32."""
    return logits[:, -1].astype(mx.float32)


def _probe(model: Any, caches: SequenceCaches) -> mx.array:
    """Compute one token, and return its logits."""
    logits: mx.array = model(mx.array([[0]], dtype=mx.int32), cache=caches.caches)
    mx.eval(logits, caches.arrays)
    return logits
