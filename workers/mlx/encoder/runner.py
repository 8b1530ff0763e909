"""The MLX runner of an encoder: hidden states of whole sequences."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.weight_size import weight_bytes
from workers.engine.encoders.encoder_runner import CALL_ROWS, EncoderRunner, check_sequences, encoder_slots
from workers.engine.runner import Chunk, RunnerCapabilities
from workers.host.memory import Needed, free_bytes
from workers.load_options import LoadOptions, Progress
from workers.mlx.encoder.model import MlxEncoder
from workers.mlx.runtime.device import OwnedDevice, choose_device, maybe_set_recommended_wired_limit

LEAST_TOKENS = 16
"""Tokens to which the shortest sequences are padded on a GPU; others to the next power of two."""
GPU_ROWS = 256
"""Rows of a call on a GPU, at least, padding included: always as many for sequences of one length, because kernels
change with the number of rows."""


class MlxEncoderRunner(EncoderRunner):
    """`workers.engine.runner.Runner` for encoders. Only the thread that loaded it may use it.

    The bits of a sequence do not depend on others: on a CPU each is computed by itself, on a GPU calls of one length
    have one shape.
    """

    def __init__(self, model: MlxEncoder, capabilities: RunnerCapabilities, device: mx.Device) -> None:
        self.capabilities = capabilities
        self._model: MlxEncoder | None = model
        self._owner = OwnedDevice(device)
        self._alone = device.type == mx.cpu

    @classmethod
    def load(cls, path: Path, config: EncoderConfig, options: LoadOptions, progress: Progress) -> "MlxEncoderRunner":
        """Load a checkpoint in the calling thread, which owns the runner from then on. Raises `CheckpointError` for
        what cannot be served, `LoadRefused` for a device that is not there."""
        context = config.choose_context(options.context)
        name, chosen = choose_device(options.device)
        if name == "gpu":
            maybe_set_recommended_wired_limit()
        kind = config.dtype if options.dtype == "auto" else options.dtype
        weights = open_weights(path)
        needed = Needed(weight_bytes(weights, kind, options.quantize), 0, options.slots, context)
        needed.check(free_bytes(), options.quantize, quantizable=True, leaving=options.leaving_bytes)
        with mx.stream(chosen):
            model = MlxEncoder.load(config, weights, getattr(mx, kind), options.quantize, context, progress)
        capabilities = RunnerCapabilities(
            backend="mlx",
            device=name,
            dtype=kind,
            quantization="" if options.quantize == "none" else options.quantize,
            slots=encoder_slots(options.slots),
            context=context,
            vocab_size=config.vocab_size,
            prefill_chunks=(CALL_ROWS,),
            exact_rows=True,
            weight_bytes=model.nbytes,
            hidden_width=config.hidden_size,
            bidirectional=True,
        )
        return cls(model, capabilities, chosen)

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """See `Runner.hidden`."""
        model = self._model
        if model is None:
            raise RuntimeError("the runner is closed")
        check_sequences(self.capabilities, chunks, model.config.token_types)
        found: dict[int, NDArray[np.float32]] = {}
        with self._owner.selected():
            for length, batch, sequences in self._calls(chunks):
                rows = self._call(model, length, batch, sequences)
                found |= {chunk.slot: rows[at, : len(chunk.tokens)] for at, chunk in enumerate(sequences)}
        return [found[chunk.slot] for chunk in chunks]

    def _calls(self, chunks: Sequence[Chunk]) -> Iterator[tuple[int, int, list[Chunk]]]:
        """Yield the padded length, the sequences of the call's shape, and those that it has."""
        if self._alone:
            for chunk in chunks:
                yield len(chunk.tokens), 1, [chunk]
            return
        of_length: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            padded = max(LEAST_TOKENS, 1 << (len(chunk.tokens) - 1).bit_length())
            of_length.setdefault(padded, []).append(chunk)
        for length, mine in of_length.items():
            batch = max(1, GPU_ROWS // length)
            for at in range(0, len(mine), batch):
                yield length, batch, mine[at : at + batch]

    def _call(self, model: MlxEncoder, length: int, batch: int, sequences: Sequence[Chunk]) -> NDArray[np.float32]:
        tokens, types = np.zeros((batch, length), np.int32), np.zeros((batch, length), np.int32)
        lengths = np.ones(batch, np.int32)
        for at, chunk in enumerate(sequences):
            count = lengths[at] = len(chunk.tokens)
            tokens[at, :count] = chunk.tokens
            if chunk.token_types is not None:
                types[at, :count] = chunk.token_types
        return np.array(model(tokens, types, lengths))

    def memory(self) -> dict[str, int]:
        """Return the bytes of the weights."""
        return {"weights": 0 if self._model is None else self._model.nbytes, "kv": 0}

    def close(self) -> None:
        """See `Runner.close`."""
        self._model = None
        with self._owner.selected():
            mx.clear_cache()
        self._owner.closed = True
