"""What a device must offer to the scheduler. Everything that a client can see is decided above this line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec


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
    """Sizes of prefill calls in rising order. A prompt is split by `workers.engine.chunking.chunk_lengths`, from its
    own length alone."""
    exact_rows: bool = False
    """A row is the same to the bit however it is computed: in any chunk, decode step or batch. So a prefill call may
    have chunks of several slots, as many as fit into the largest size."""
    block_rows: int = 1
    """The rows of one slot count as a multiple of this in the size of such a call."""
    row_bytes: int = 0
    """Bytes of one cache row: keys and values of one token in all layers. 0 where nothing is held."""
    kv_rows: int = 0
    """Cache rows that there is memory for, all slots together; 0 is every slot's whole context."""
    quantization: str = ""
    """Of the matrices: "int8", "int4", "int4+int8" where layers differ; empty when they are of `dtype`."""


class Chunk(Struct, frozen=True, gc=False):
    """A run of prompt tokens of one slot: rows `start .. start + len(tokens)` of its cache, written in place.

    `position` is the RoPE position of the first token; it equals `start` unless something was left out before it.
    """

    slot: int
    tokens: tuple[int, ...]
    start: int
    position: int


class DecodeRow(Struct, frozen=True, gc=False):
    """One decode row: `token` goes to cache row `start` of `slot` with RoPE position `position`, then one is
    sampled."""

    slot: int
    token: int
    start: int
    position: int
    sample: SampleSpec


class NotFiniteError(Exception):
    """Raised by `logits` when the model's logits are not numbers: its weights are damaged, or overflow in this dtype,
    or the prompt is such that they do."""

    def __init__(self) -> None:
        super().__init__("the model's logits are not finite")


def check_chunks(capabilities: RunnerCapabilities, written: Callable[[int], int], chunks: Sequence[Chunk]) -> None:
    """Raise `ValueError` for chunks of one step that would read or write outside of what they own.

    `written` gives the cache rows of a slot that are filled; a decode row is a chunk of one token.
    """
    if len({chunk.slot for chunk in chunks}) != len(chunks):
        raise ValueError("slot: a step takes one row a slot")
    for chunk in chunks:
        if not 0 <= chunk.slot < capabilities.slots:
            raise ValueError(f"slot: {chunk.slot} is not one of {capabilities.slots}")
        if not chunk.tokens or min(chunk.tokens) < 0 or max(chunk.tokens) >= capabilities.vocab_size:
            raise ValueError(f"tokens: none, or outside of a vocabulary of {capabilities.vocab_size}")
        if not 0 <= chunk.start <= written(chunk.slot):
            raise ValueError(f"start: {chunk.start} leaves a gap after {written(chunk.slot)} rows")
        if chunk.start + len(chunk.tokens) > capabilities.context:
            raise ValueError(f"start: a slot has {capabilities.context} rows")
        if chunk.position < 0:
            raise ValueError(f"position: {chunk.position} is negative")


def check_rows(capabilities: RunnerCapabilities, written: Sequence[int], rows: Sequence[DecodeRow]) -> None:
    """`check_chunks` for decode rows, in a fraction of its time; `written` has the filled rows of each slot."""
    slots, vocab, context = capabilities.slots, capabilities.vocab_size, capabilities.context
    if len({row.slot for row in rows}) == len(rows) and all(
        0 <= row.slot < slots
        and 0 <= row.token < vocab
        and 0 <= row.start <= written[row.slot]
        and row.start < context
        and row.position >= 0
        for row in rows
    ):
        return
    chunks = [Chunk(row.slot, (row.token,), row.start, row.position) for row in rows]
    check_chunks(capabilities, written.__getitem__, chunks)  # which says what it is


def check_specs(capabilities: RunnerCapabilities, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> None:
    """Raise `ValueError` unless there is an entry for each chunk, and one chunk where rows are not exact."""
    if len(chunks) > 1 and not capabilities.exact_rows:
        raise ValueError(f"chunks: {len(chunks)}, and a row may depend on those beside it")
    if len(chunks) != len(specs):
        raise ValueError(f"specs: {len(specs)} for {len(chunks)} chunks")


def check_copy(
    capabilities: RunnerCapabilities, written: Callable[[int], int], source: int, target: int, length: int
) -> None:
    """Raise `ValueError` for a copy of rows that are not there, or between slots that are not."""
    for name, slot in (("source", source), ("target", target)):
        if not 0 <= slot < capabilities.slots:
            raise ValueError(f"{name}: {slot} is not one of {capabilities.slots}")
    if not 0 <= length <= written(source):
        raise ValueError(f"length: {length} rows of a slot with {written(source)}")


class Runner(Protocol):
    """A model on a device with `capabilities.slots` KV slots. Used by one thread only, the one that made it.

    Any exception from a call means that the call failed for the slots it named; the scheduler then calls `reset` for
    each and ends their requests. A runner raises and never returns a wrong token.
    """

    @property
    def capabilities(self) -> RunnerCapabilities: ...

    @property
    def graphs_failed(self) -> int:
        """What could not be prepared in the background, and is done without: calls are slower, not different. Read by
        other threads, too."""

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """Compute the KV of chunks of different slots, one where rows are not exact. Returns an entry for each: the
        token sampled from its last row's logits where it has a `SampleSpec`.

        None is for a chunk without a `SampleSpec`, and for one with non-finite logits: it failed alone, and its
        slot must be reset.
        """

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """One ragged step: at most one row a slot, in any order of slots. Returns the sampled tokens in row order.

        None is for a row with non-finite logits: it failed alone, and its slot must be reset.
        """

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """Of the tokens that the last `prefill` or `decode` sampled, for these of its samples, in their order.

        Only for rows that got a token and whose `sample.sampling.logprobs` asks for them. They are computed when asked
        for, from what that call left on the device; nothing may be called in between.
        """

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """Like `prefill`, and return the logits of every row: float32 [len(chunk.tokens), vocab_size]."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make the first `length` rows of `target` those of `source`, on the device, and forget what else it held as
        `reset` does. `source` may be `target`: then its rows beyond `length` are forgotten."""

    def reset(self, slot: int) -> None:
        """Forget a slot. What it held must not be readable by its next owner."""

    def memory(self) -> dict[str, int]:
        """Bytes by purpose: at least `weights` and `kv`."""

    def settle(self) -> None:
        """Wait for what is still prepared in the background and would make later calls cheaper, not different."""

    def close(self) -> None:
        """Free the device. Nothing may be called after."""
