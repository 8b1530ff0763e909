"""The head for multi-token prediction on MLX: its weights, its layer of the cache, and the rows that wait for it.

As in MiMo (https://arxiv.org/abs/2505.07608): the hidden state of a row and the embedding of the token after it, each
normed, are side by side the input of one layer. mlx-lm leaves these weights out.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from workers.checkpoints.architectures.tensors import MTP_LAYERS
from workers.checkpoints.quantization_config import Quantization
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.speculation.mtp.head_rows import HeadRows, HeadRun
from workers.mlx.kv import KvCache
from workers.sampling.sample_spec import SampleSpec, with_masks

_OWN = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
"""The modules beside the layer."""
FILL_ROWS = 32
"""Rows that wait until they are computed without a draft."""


class MtpLayer(nn.Module):  # type: ignore[misc]
    """The weights of the head."""

    def __init__(self, module: ModuleType, args: Any) -> None:
        """`module` is that of mlx-lm, `args` the model's."""
        super().__init__()
        hidden, eps = args.hidden_size, args.rms_norm_eps
        self.token_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.hidden_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.block = module.TransformerBlock(args)
        self.final_layernorm = nn.RMSNorm(hidden, eps=eps)

    def __call__(self, hidden: mx.array, embeddings: mx.array, cache: Any) -> mx.array:
        """Return the normed hidden states of the head, [rows, 1, hidden], of those of the model and embeddings."""
        both = mx.concatenate([self.hidden_layernorm(hidden), self.token_layernorm(embeddings)], axis=-1)
        out: mx.array = self.final_layernorm(self.block(self.input_proj(both), None, cache))
        return out


class LaterNorm(nn.Module):  # type: ignore[misc]
    """Stands for the last norm of a model, whose hidden states are wanted before it. Owns that norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def __call__(self, x: mx.array) -> mx.array:
        return x


class MlxMtpHead:
    """Implements `DraftHead`. Owns the hidden states of the last call of each slot."""

    def __init__(
        self,
        slots: int,
        compute: Callable[[Sequence[HeadRun[mx.array]]], mx.array],
        sample: Callable[[mx.array, Sequence[SampleSpec]], list[int | None]],
        kv: KvCache,
        owned: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`compute` writes the KV of rows of the head and returns their normed hidden states, from which `sample`
        samples. Drafts are made while `owned` is entered."""
        self.rows: HeadRows[mx.array] = HeadRows(slots)
        self._compute = compute
        self._sample = sample
        self._kv = kv
        self._owned = owned
        self.followed_s = self.prompts_s = 0.0

    def follow(self, slots: int | None) -> None:
        """See `DraftHead.follow`."""
        self.rows.follow(slots)

    def computed(self, chunks: Sequence[Chunk], hidden: mx.array, *, prompt: bool) -> None:
        """Note chunks that the model has computed, those of prompts or not, whose hidden states are these."""
        first = 0
        for chunk in chunks:
            count = len(chunk.tokens)
            if not self.rows.follows(chunk.slot, prompt=prompt):
                first += count
                continue
            self.rows.computed(chunk.slot, chunk.start, chunk.position, chunk.tokens, hidden[first : first + count])
            first += count

    def fill(self, least: int = 1, *, prompt: bool = True) -> None:
        """Compute the rows that wait, if they are so many, after a call for a prompt or not."""
        if self.rows.waiting >= least:
            began = time.perf_counter()
            self._compute(list(self.rows.take()))
            mx.eval(self._kv.arrays)
            took = time.perf_counter() - began
            self.followed_s, self.prompts_s = self.followed_s + took * (not prompt), self.prompts_s + took * prompt

    def ready(self, slot: int, row: int) -> bool:
        """See `DraftHead.ready`."""
        return self.rows.next(slot, row, 0) is not None

    def draft(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """See `DraftHead.draft`."""
        runs = [self.rows.next(row.slot, row.start, row.token) for row in rows]
        found = [run for run in runs if run is not None]
        if len(found) < len(rows):
            raise ValueError("rows: the hidden state before a row is unknown")
        with self._owned():
            hidden = self._compute([*self.rows.take(), *found])[-len(found) :]
            tokens = self._sample(hidden, with_masks(row.sample for row in rows))
            mx.eval(hidden, self._kv.arrays)
            for at, run in enumerate(found):
                self.rows.drafted(run, hidden[at : at + 1])
        return tokens


def load_mtp(layer: MtpLayer, tensors: Mapping[str, mx.array], quantization: Quantization | None) -> None:
    """Give the head its weights, out of those of the checkpoint. Raises what `load_weights` raises."""
    prefix = f"{MTP_LAYERS}0."
    mine = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    named = {name if name.startswith(_OWN) else f"block.{name}": tensor for name, tensor in mine.items()}

    def groups(name: str, module: Any) -> bool | dict[str, int]:
        if quantization is None or not hasattr(module, "to_quantized") or f"{name}.scales" not in named:
            return False
        group, bits = quantization.of(prefix + name.removeprefix("block."))
        return {"group_size": module.weight.shape[-1] if group == -1 else group, "bits": bits}

    nn.quantize(layer, class_predicate=groups)
    layer.eval()
    layer.load_weights(list(named.items()), strict=True)
