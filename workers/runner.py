"""What a device must offer to the scheduler. Everything that a client can see is decided above this line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from protocol.request import Sampling


@dataclass(frozen=True, slots=True)
class RunnerCapabilities:
    """What one runner is and how much it holds."""

    backend: str
    device: str
    dtype: str
    """Weights and KV: float32, float16 or bfloat16."""
    slots: int
    """Sequences that hold KV at once (B_max)."""
    context: int
    """Cache rows of one slot: prompt and answer together."""
    vocab_size: int
    prefill_chunks: tuple[int, ...]
    """Chunk lengths in rising order. A prompt is cut by `workers.scheduler.cut`, from its own length alone."""


class Chunk(Struct, frozen=True, gc=False):
    """A run of prompt tokens of one slot: rows `start .. start + len(tokens)` of its cache, written in place.

    `position` is the RoPE position of the first token; it equals `start` unless something was left out before it.
    """

    slot: int
    tokens: tuple[int, ...]
    start: int
    position: int


class Draw(Struct, frozen=True, gc=False):
    """How to draw one token: the noise is keyed by (sampling.seed, position), `position` being the index in the
    whole sequence (prompt and answer) of the token that is drawn."""

    sampling: Sampling
    position: int


class Row(Struct, frozen=True, gc=False):
    """One decode row: `token` goes to cache row `start` of `slot` with RoPE position `position`, then one is drawn."""

    slot: int
    token: int
    start: int
    position: int
    draw: Draw


class Runner(Protocol):
    """A model on a device with `capabilities.slots` KV slots. Used by one thread only, the one that made it.

    Any exception from a call means that the call failed for the slots it named; the scheduler then calls `reset` for
    each and ends their requests. A runner raises and never returns a wrong token.
    """

    @property
    def capabilities(self) -> RunnerCapabilities: ...

    def prefill(self, chunk: Chunk, draw: Draw | None) -> int | None:
        """Compute the KV of one chunk. With `draw`, return the token drawn from the last row's logits."""

    def decode(self, rows: Sequence[Row]) -> list[int]:
        """One ragged step: at most one row a slot, in any order of slots. Returns the drawn tokens in row order."""

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """Like `prefill`, and return the logits of every row: float32 [len(chunk.tokens), vocab_size]."""

    def reset(self, slot: int) -> None:
        """Forget a slot. What it held must not be readable by its next owner."""

    def memory(self) -> dict[str, int]:
        """Bytes by purpose: at least `weights` and `kv`."""

    def close(self) -> None:
        """Free the device. Nothing may be called after."""
