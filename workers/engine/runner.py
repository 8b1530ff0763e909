"""Runner interface: what a device must offer to the scheduler. Everything that a client sees is decided above it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from workers.engine.embeddings.chunk_rows import ChunkRows
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec
from workers.vision.encoder import VisionEncoder


@dataclass(frozen=True, slots=True)
class RunnerCapabilities:
    """Describes a runner: backend, number formats and capacity."""

    backend: str
    device: str
    dtype: str
    """Type of weights and KV: float32, float16 or bfloat16."""
    slots: int
    """Maximum number of sequences with KV at the same time."""
    context: int
    """Cache rows of one slot, for prompt and answer together."""
    vocab_size: int
    prefill_chunks: tuple[int, ...]
    """Sizes of prefill calls in rising order. `workers.engine.chunking.chunk_lengths` splits a prompt into them by its
    length alone."""
    exact_rows: bool = False
    """A row is bitwise identical in any chunk, decode step or batch. A prefill call may then have chunks of several
    slots, as many as fit into the largest size."""
    block_rows: int = 1
    """In the size of a shared prefill call, the rows of each slot are rounded up to a multiple of this."""
    row_bytes: int = 0
    """Bytes of one cache row: keys and values of one token in all layers. 0 without a cache."""
    weight_bytes: int = 0
    """Bytes of the weights; 0 if unknown."""
    kv_rows: int = 0
    """Cache rows that fit into memory, in all slots together; 0 means the whole context of every slot."""
    quantization: str = ""
    """Quantization of the weights: "int8", "int4", or "int4+int8" if layers differ; empty if they are of `dtype`."""
    rows_format: str = ""
    """Identifies the bytes of cache rows and of the recurrent state: runners of one format compute the same bits for
    the same tokens, and store them in the same layout, so that one can write what another has read. Empty if rows
    cannot be read."""
    decode_rows: int = 0
    """Most rows of a decode step that has several rows of one slot; 0 if a step takes one row a slot. More than 0 only
    if rows are exact."""
    draft_rows: int = 0
    """Most rows of a decode step for which `Runner.fits`, where these may be more than `decode_rows`."""
    embedding_width: int = 0
    """The hidden size, where prompts may have rows of embeddings in place of tokens; 0 where they may not."""
    state_bytes: int = 0
    """Bytes of the state of one slot beside its rows; 0 if there is none. It is recurrent, or with `window_rows` the
    last rows of layers with a window, of which the methods for states tell the same. A model with recurrent state may
    have no rows at all: `row_bytes` is 0 then. With `exact_rows` the state is bitwise identical as well, in any chunks
    and steps."""
    replays_steps: bool = False
    """Tokens after a prompt are computed again one by one, as they were decoded, where an answer is taken up again: for
    a runner whose bits depend on the number of rows of a call, and on nothing else."""
    rollback_rows: int = 0
    """Rows of the last decode step of a slot that can be taken back from its recurrent state without `write_state`; 0
    if none can. A decode step has at most so many rows of one slot, or one row if this is 0. The only row of a slot in
    a step has no drafts beside it, and need not be taken back."""
    window_rows: int = 0
    """Last rows of a slot that layers with an attention window keep; 0 is all rows. Of earlier rows they have nothing,
    so that a slot is continued behind its last rows, or where a state is written (`workers.engine.states.lost_rows`).
    Such a model has no recurrent state; `read_state` reads the `window_reach` rows before any length that the slot can
    be continued at."""
    window_reach: int = 0
    """Rows before a row that such layers read."""
    bidirectional_images: bool = False
    """Tokens of an image attend to each other in both directions: a chunk has all of an image or nothing of it
    (`Chunk.ends`)."""
    window_bytes: int = 0
    """Bytes that such layers take for each slot; `row_bytes` is of the others."""
    hidden_width: int = 0
    """Numbers of a hidden state, where `Runner.hidden` returns them; 0 where it does not."""
    bidirectional: bool = False
    """Tokens attend to later ones too: a chunk is a whole sequence from row 0, of which no rows are kept. Only
    `Runner.hidden` computes chunks; several of them in a call have at most the largest size of `prefill_chunks`
    together, and a longer sequence is a call of its own."""
    adapters: tuple[str, ...] = ()
    """The names of the adapters that chunks and rows may have, by their numbers from 1 on."""
    adapter_places: int = 0
    """The numbers after those that adapters may have which are loaded at run time."""

    @property
    def adapter_numbers(self) -> int:
        """The highest number of an adapter."""
        return len(self.adapters) + self.adapter_places


class Chunk(Struct, frozen=True, gc=False):
    """Consecutive prompt tokens of one slot, which fill rows `start .. start + len(tokens)` of its cache.

    `position` is the RoPE position of the first token. It equals `start` unless earlier tokens were left out. The
    others follow one after the other, unless `positions` has those of all tokens, in rising order.
    """

    slot: int
    tokens: tuple[int, ...]
    start: int
    position: int
    embeddings: ChunkRows | None = None
    """The rows that negative numbers among the tokens stand for."""
    positions: tuple[int, ...] | None = None
    axes: NDArray[np.int32] | None = None
    """The positions in time, row and column of each token, [3, tokens], for a model whose RoPE has these three
    (M-RoPE). None if all three are the position. `position` is then of no consequence."""
    ends: tuple[int, ...] | None = None
    """For each token the cache row before which it attends to rows, where it attends to later tokens of the chunk too:
    to those of its image. None if each attends up to itself."""
    token_types: tuple[int, ...] | None = None
    """The segment of each token (`token_type_ids`), for encoders of pairs of texts. None if all are 0."""
    adapter: int = 0
    """The number of the adapter that is applied to the rows; 0 is none."""

    def position_at(self, index: int) -> int:
        """Return the RoPE position of a token."""
        return self.position + index if self.positions is None else self.positions[index]

    def part(self, at: int, length: int) -> "Chunk":
        """Return up to `length` tokens from index `at` on as a chunk."""
        positions = None if self.positions is None else self.positions[at : at + length]
        tokens = self.tokens[at : at + length]
        axes = None if self.axes is None else self.axes[:, at : at + length]
        ends = None if self.ends is None else self.ends[at : at + length]
        types = None if self.token_types is None else self.token_types[at : at + length]
        start, position = self.start + at, self.position_at(at)
        return Chunk(self.slot, tokens, start, position, self.embeddings, positions, axes, ends, types, self.adapter)


class DecodeRow(Struct, frozen=True, gc=False):
    """One row of a decode step.

    It writes `token` to cache row `start` of `slot`, at RoPE position `position`, and samples the next token. In
    speculative decoding, a slot has several rows side by side, in consecutive cache rows and at consecutive positions:
    those after the first have drafted tokens.
    """

    slot: int
    token: int
    start: int
    position: int
    sample: SampleSpec
    adapter: int = 0
    """As in `Chunk`; that of all rows of a slot."""


class NotFiniteError(Exception):
    """Raised by `logits` and `prefill_reported` for NaN or infinite logits: damaged weights, or an overflow in this
    dtype or for this prompt."""

    def __init__(self) -> None:
        super().__init__("the model's logits are not finite")


def check_chunks(capabilities: RunnerCapabilities, written: Callable[[int], int], chunks: Sequence[Chunk]) -> None:
    """Raise `ValueError` for chunks of one step that would read or write outside of their slots.

    `written` returns the number of filled cache rows of a slot. A decode row counts as a chunk of one token.
    """
    if len({chunk.slot for chunk in chunks}) != len(chunks):
        raise ValueError("slot: a step takes one row a slot")
    for chunk in chunks:
        if not 0 <= chunk.slot < capabilities.slots:
            raise ValueError(f"slot: {chunk.slot} is not one of {capabilities.slots}")
        if not chunk.tokens or max(chunk.tokens) >= capabilities.vocab_size or not _has_rows_for(capabilities, chunk):
            raise ValueError(f"tokens: give at least one, none outside of a vocabulary of {capabilities.vocab_size}")
        if not 0 <= chunk.start <= written(chunk.slot):
            raise ValueError(f"start: {chunk.start} leaves a gap after {written(chunk.slot)} rows")
        if chunk.start + len(chunk.tokens) > capabilities.context:
            raise ValueError(f"start: a slot has {capabilities.context} rows")
        if chunk.position < 0:
            raise ValueError(f"position: {chunk.position} is negative")
        if not 0 <= chunk.adapter <= capabilities.adapter_numbers:
            raise ValueError(f"adapter: {chunk.adapter}, of {capabilities.adapter_numbers}")
        if chunk.positions is not None and not _are_positions_of(chunk, chunk.positions):
            raise ValueError(f"positions: give {len(chunk.tokens)} in rising order from {chunk.position} on")


def _are_positions_of(chunk: Chunk, positions: tuple[int, ...]) -> bool:
    rising = all(first < second for first, second in pairwise(positions))
    return len(positions) == len(chunk.tokens) and positions[0] == chunk.position and rising


def _has_rows_for(capabilities: RunnerCapabilities, chunk: Chunk) -> bool:
    """Return whether each negative number of a chunk stands for a row of embeddings that the runner takes."""
    if min(chunk.tokens) >= 0:
        return True
    embeddings = chunk.embeddings
    if embeddings is None or embeddings.width != capabilities.embedding_width:
        return False
    return all(token >= 0 or embeddings.has(token) for token in chunk.tokens)


def check_rows(capabilities: RunnerCapabilities, written: Sequence[int], rows: Sequence[DecodeRow]) -> None:
    """Check decode rows like `check_chunks`, but faster. `written` has the number of filled rows of each slot."""
    slots, vocab, context = capabilities.slots, capabilities.vocab_size, capabilities.context
    adapters = capabilities.adapter_numbers
    if len({row.slot for row in rows}) == len(rows) and all(
        0 <= row.slot < slots
        and 0 <= row.token < vocab
        and 0 <= row.start <= written[row.slot]
        and row.start < context
        and row.position >= 0
        and 0 <= row.adapter <= adapters
        for row in rows
    ):
        return
    chunks = chunks_of(rows)
    most = max(capabilities.decode_rows, capabilities.draft_rows)
    if len(rows) > max(len(chunks), most):
        raise ValueError(f"rows: {len(rows)} for {len(chunks)} slots, a step takes {most or 'one row a slot'}")
    check_chunks(capabilities, written.__getitem__, chunks)  # raises the error


def chunks_of(rows: Sequence[DecodeRow]) -> list[Chunk]:
    """Return decode rows as chunks: one for the rows of a slot that lie side by side in consecutive cache rows."""
    chunks: list[Chunk] = []
    for row in rows:
        last = chunks[-1] if chunks else None
        offset = 0 if last is None else len(last.tokens)
        if last is not None and (row.slot, row.start, row.position) == (
            last.slot,
            last.start + offset,
            last.position + offset,
        ):
            tokens = (*last.tokens, row.token)
            chunks[-1] = Chunk(last.slot, tokens, last.start, last.position, adapter=last.adapter)
        else:
            chunks.append(Chunk(row.slot, (row.token,), row.start, row.position, adapter=row.adapter))
    return chunks


def check_specs(capabilities: RunnerCapabilities, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> None:
    """Raise `ValueError` unless there is one entry per chunk, and a single chunk if rows are not exact."""
    if len(chunks) > 1 and not capabilities.exact_rows:
        raise ValueError(f"chunks: {len(chunks)}, but rows are not exact: pass one chunk per call")
    if len(chunks) != len(specs):
        raise ValueError(f"specs: {len(specs)} for {len(chunks)} chunks")


def check_hidden(capabilities: RunnerCapabilities, chunks: Sequence[Chunk]) -> None:
    """Raise `ValueError` for chunks that `Runner.hidden` does not take together, or if it takes none."""
    if not capabilities.hidden_width:
        raise ValueError("chunks: the runner returns no hidden states")
    check_specs(capabilities, chunks, [None] * len(chunks))


def check_targets(capabilities: RunnerCapabilities, chunk: Chunk, targets: Sequence[int]) -> None:
    """Raise `ValueError` for targets of `prefill_reported` that do not belong to the rows of its chunk."""
    if not len(chunk.tokens) - 1 <= len(targets) <= len(chunk.tokens):
        raise ValueError(f"targets: {len(targets)} for {len(chunk.tokens)} rows")
    if targets and (min(targets) < 0 or max(targets) >= capabilities.vocab_size):
        raise ValueError(f"targets: give none outside of a vocabulary of {capabilities.vocab_size}")


def check_copy(
    capabilities: RunnerCapabilities, written: Callable[[int], int], source: int, target: int, length: int
) -> None:
    """Raise `ValueError` for a copy of rows that are not written, or between slots that do not exist."""
    for name, slot in (("source", source), ("target", target)):
        if not 0 <= slot < capabilities.slots:
            raise ValueError(f"{name}: {slot} is not one of {capabilities.slots}")
    if not 0 <= length <= written(source):
        raise ValueError(f"length: {length} rows of a slot with {written(source)}")


def check_read(
    capabilities: RunnerCapabilities, written: Callable[[int], int], slot: int, start: int, end: int
) -> None:
    """Raise `ValueError` for a read of no rows, of rows that are not written, or of a slot that does not exist.

    Also where rows cannot be read at all.
    """
    _check_format(capabilities)
    if not 0 <= slot < capabilities.slots:
        raise ValueError(f"slot: {slot} is not one of {capabilities.slots}")
    if not 0 <= start < end:
        raise ValueError(f"start: rows {start} to {end} are none")
    if end > written(slot):
        raise ValueError(f"end: row {end} of a slot with {written(slot)}")


def check_write(
    capabilities: RunnerCapabilities, written: Callable[[int], int], slot: int, start: int, size: int
) -> int:
    """Return the number of rows in `size` bytes that are written to a slot behind its first `start` rows.

    Raises `ValueError` for a slot that does not exist or has another number of rows, for bytes that are not whole rows,
    for more rows than the slot has room for, and where rows cannot be read.
    """
    _check_format(capabilities)
    if not 0 <= slot < capabilities.slots:
        raise ValueError(f"slot: {slot} is not one of {capabilities.slots}")
    if start != written(slot):
        raise ValueError(f"start: {start}, of a slot with {written(slot)} rows")
    count, rest = divmod(size, capabilities.row_bytes)
    if rest or not count:
        raise ValueError(f"rows: {size} bytes are not rows of {capabilities.row_bytes}")
    if start + count > capabilities.context:
        raise ValueError(f"rows: {count} rows from {start} on, a slot has {capabilities.context}")
    return count


def _check_format(capabilities: RunnerCapabilities) -> None:
    if not capabilities.row_bytes:
        raise ValueError("slot: the model has no cache rows")
    if not capabilities.rows_format:
        raise ValueError(f"slot: rows cannot be read or written on {capabilities.device}")


class DraftHead(Protocol):
    """A head for multi-token prediction: predicts the token after the next one, from the hidden state of the row before
    and the next token.

    Its keys and values are a layer more of the runner's slots. It follows the calls of the runner by itself. Used only
    by the runner's thread, between two calls.
    """

    @property
    def followed_s(self) -> float:
        """Seconds that it took so far to follow decode steps, since it can draft."""

    @property
    def prompts_s(self) -> float:
        """Those that it took to follow prompts."""

    def follow(self, slots: int | None) -> None:
        """Follow the calls of all slots from now on, with None. Otherwise only those of so many slots, the next ones of
        which a prompt is computed: 0 costs nothing. Rows that it has not followed are as they were, and drafts after
        them are less often right."""

    def ready(self, slot: int, row: int) -> bool:
        """Return whether it has the hidden state of the last row before `row` of a slot, and all else that it needs."""

    def draft(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """Sample the tokens after decode rows that the model computes next, one of each slot, as the model samples them
        by its own logits. None for a row with non-finite logits.

        Afterwards the rows that have these tokens are ready as well. Raises `ValueError` for a row that is not ready.
        """


LOOKED_ROWS = 8
"""Rows whose queries are read at once: one block of the prefill graphs for CPUs."""


@dataclass(frozen=True, slots=True)
class AttentionReader:
    """Reads the queries and keys of a runner's model, from which prompts are scored for sparse prefill.

    Used only by the runner's thread, between two calls.
    """

    layers: tuple[int, ...]
    """The layers that attend to the whole prompt."""
    queries: Callable[[Chunk], Sequence[NDArray[np.float32]]]
    """Computes up to `LOOKED_ROWS` rows like `Runner.prefill`, and returns their queries in each of `layers`, rotated
    and scaled: float32 [rows, heads, lanes], of which the lanes may differ between layers. Raises `ValueError` as
    `check_chunks` does."""
    keys: Callable[[int, int, int], NDArray[np.float32]]
    """Returns the keys of the rows of a slot (the first argument) in a layer of the model (the second one) up to a row
    (the third one), rotated: float32 [KV heads, rows, lanes]."""


class Runner(Protocol):
    """A model on a device, with `capabilities.slots` KV slots. Used only by the thread that made it.

    An exception from a call means that the call failed for all slots that it named; the scheduler then calls `reset`
    for each of them and ends their requests. A runner raises rather than return a wrong token.
    """

    @property
    def capabilities(self) -> RunnerCapabilities:
        """Backend, number formats and capacity."""

    @property
    def draft_head(self) -> DraftHead | None:
        """The head for multi-token prediction that was loaded with the model; None without one."""

    @property
    def attention(self) -> AttentionReader | None:
        """Reads the model's queries and keys; None if the runner was not loaded with it."""

    @property
    def vision(self) -> VisionEncoder | None:
        """The vision tower that was loaded with the model; None without one."""

    @property
    def graphs_failed(self) -> int:
        """Number of graphs that could not be compiled in the background; read from any thread.

        Without them calls are slower, with the same results.
        """

    def fits(self, rows: int) -> bool:
        """Return whether a decode step may have so many rows now: `decode_rows` always. Up to `draft_rows` it may only
        lack a graph, which is then compiled in the background."""

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """Compute the KV of chunks of different slots; of a single chunk if rows are not exact.

        Returns one entry per chunk: the token sampled from the logits of its last row, or None. None stands for a chunk
        without a `SampleSpec`, and for non-finite logits: then only this chunk failed, and its slot must be reset.
        """

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """Run one ragged decode step: at most one row a slot, in any order, or as many as `decode_rows` allows. Returns
        the sampled tokens in row order. Every row samples what it would in a step of its own.

        None stands for a row with non-finite logits: only its slot failed, and must be reset. If the slot has several
        rows, it is enough to truncate it to those before the step.
        """

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """Return the log-probabilities of samples of the last `prefill` or `decode`, by their index in that call.

        Only for rows that got a token and whose `sample.sampling.logprobs` is set. They are computed on demand from
        logits that the call left on the device, so no other call may come in between.
        """

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """Numbers of rows of a `prefill_reported` that are efficient now, in rising order: the first one costs about as
        much as the smallest prefill call. Of no consequence if rows are not exact."""

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        """Compute a chunk like `prefill`, with the same KV and the same token, and the log-probability of targets[i] by
        the logits of row i. There are as many targets as rows, or one less: the last row of a prompt has none.

        Raises `NotFiniteError` if the logits of any row are not finite.
        """

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """Compute a chunk like `prefill` and return the logits of every row: float32 [len(chunk.tokens),
        vocab_size]."""

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """Compute chunks of different slots like `prefill`, and return the hidden states of all rows of each chunk,
        after the model's last norm: float32 [len(chunk.tokens), hidden_width]. They may be non-finite.

        Raises `ValueError` if `hidden_width` is 0.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` rows of `source` to `target` on the device, and clear the other rows of `target`.

        If both are one slot, only its rows beyond `length` are cleared: it is truncated. A recurrent state goes along
        with all rows of `source`, or all but those that can be taken back (`rollback_rows`); with 0 rows `target` has
        the initial state. With other lengths `target` has rows without a state, and no call computes it further until
        `write_state`. `workers.engine.slot_states.SlotStates` implements these rules.
        """

    def read_rows(self, slot: int, start: int, end: int) -> bytes | memoryview:
        """Return a copy of rows `start .. end` of a slot: `row_bytes` bytes for each.

        Their order depends on `start` and `end`: they can be written only together, as rows `start .. end` of a slot of
        a runner of the same `rows_format`. Raises `ValueError` (see `check_read`).
        """

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """Append rows that `read_rows` has returned for this `start`, to a slot with exactly `start` rows.

        The caller vouches for the bytes: they are not checked. Afterwards the slot of a model with recurrent state has
        none until `write_state`. Raises `ValueError` (see `check_write`).
        """

    def read_state(self, slot: int, length: int | None = None) -> bytes | memoryview:
        """Return a copy of the recurrent state after all rows of a slot: `state_bytes` bytes. With a `length`, that
        after so many rows, behind which there are no others than can be taken back.

        Raises `ValueError` if the model or the slot has none (see `SlotStates.check_read`).
        """

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        """Make bytes that `read_state` has returned the recurrent state after the rows of a slot.

        The caller vouches for them: they were read after the same tokens, from a runner of the same `rows_format`.
        Raises `ValueError` for another size, or if the model has no such state (see `SlotStates.check_write`).
        """

    def reset(self, slot: int) -> None:
        """Clear a slot, which then has the initial recurrent state. Its next owner must not be able to read what it
        held."""

    def memory(self) -> dict[str, int]:
        """Return bytes by purpose: at least `weights` and `kv`."""

    def settle(self) -> None:
        """Wait for background work that makes later calls faster, such as compilation."""

    def close(self) -> None:
        """Free the device. Nothing may be called afterwards."""
