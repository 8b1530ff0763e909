"""Runner without a device, whose tokens follow from the sequence alone, and which checks the runner contract strictly.

Each slot keeps a rolling hash of the (token, position) pairs written to its cache, one for each row. A sampled token is
a function of the last hash: a scheduler that writes or copies a wrong row, skips one or mixes up two slots gets other
tokens. With a recurrent state, a second hash of all pairs has no rows, and tokens are a function of both.
"""

import math
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from protocol.bounds import MAX_TOP_LOGPROBS
from protocol.request import Sampling
from workers.engine.runner import (
    AttentionReader,
    Chunk,
    DecodeRow,
    DraftHead,
    RunnerCapabilities,
    check_copy,
    check_hidden,
    check_read,
    check_targets,
    check_write,
    chunks_of,
)
from workers.engine.slot_states import SlotStates
from workers.sampling.logprobs import RowLogprobs, report_rows
from workers.sampling.sample_spec import SampleSpec, with_masks
from workers.scripted.adapters import ScriptedAdapterSlots
from workers.scripted.contract import ContractError, check_call, check_positions, check_row, check_sample
from workers.scripted.hashes import MASK, fingerprint, hidden_states, mix, on_axes
from workers.scripted.images import ScriptedVision

BYTES_VOCAB = 257
"""The byte tokenizer's vocabulary: 256 byte values and the end-of-sequence token."""
ALPHABET = tuple(b"abcdefghijklmnopqrstuvwxyz ")
"""Default tokens to sample: text that is valid UTF-8 and has no end-of-sequence token."""
ROW_BYTES = 8
"""Bytes of a row: its hash."""
ROWS_FORMAT = "scripted-1"
"""The same for all scripted runners: hashes depend on tokens and positions alone."""
STATE_BYTES = 16
"""Bytes of a recurrent state, if there is one: its hash, and zeros."""


class ScriptedRunner:
    """Generates deterministic tokens from the history of a sequence.

    Tokens are sampled from `alphabet`. `tokens_per_second` limits the rate of decode steps, and
    `prefill_tokens_per_second` that of prompt tokens (0 is no limit), with `clock` and `sleep` in seconds.
    `exact_rows`, `block_rows`, `decode_rows` and `draft_rows` are reported as capabilities. `state_bytes` (0, or
    `STATE_BYTES` and more) is the size of a recurrent state, of which `rollback_rows` can be taken back; with
    `row_bytes` 0 tokens follow from it alone. With `sparse`, positions may be beyond rows, and attention can be
    read: a row attends as the hash of a row says. With `images` there is a vision tower, whose parts take
    `image_part_seconds`; with `mrope` positions may have three axes and be less than rows, and with
    `bidirectional_images` a chunk has all of an image. Hidden states of `hidden_width` numbers follow from the hash
    of their row; with `bidirectional` from that of the whole sequence, of which no rows are kept. With `adapters`,
    the hash of a row depends on its adapter. A sample with a NaN bias returns no token, and its slot must be reset,
    as on a real device. `violations` keeps the texts of all `ContractError`s, because the engine contains
    exceptions.
    """

    def __init__(
        self,
        *,
        slots: int = 8,
        context: int = 4096,
        vocab_size: int = BYTES_VOCAB,
        prefill_chunks: tuple[int, ...] = (16, 64, 256),
        exact_rows: bool = True,
        block_rows: int = 1,
        decode_rows: int = 0,
        draft_rows: int = 0,
        embedding_width: int = 0,
        row_bytes: int = ROW_BYTES,
        state_bytes: int = 0,
        rollback_rows: int = 0,
        sparse: bool = False,
        images: bool = False,
        mrope: bool = False,
        bidirectional_images: bool = False,
        image_part_seconds: float = 0.0,
        hidden_width: int = 0,
        bidirectional: bool = False,
        adapters: Sequence[str] = (),
        adapter_places: int = 0,
        alphabet: Sequence[int] = ALPHABET,
        tokens_per_second: float = 0.0,
        prefill_tokens_per_second: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._capabilities = RunnerCapabilities(
            backend="scripted",
            device="none",
            dtype="float32",
            slots=slots,
            context=context,
            vocab_size=vocab_size,
            prefill_chunks=tuple(prefill_chunks),
            exact_rows=exact_rows,
            block_rows=block_rows,
            row_bytes=row_bytes,
            rows_format=ROWS_FORMAT if not state_bytes else f"{ROWS_FORMAT}-state-{state_bytes}",
            decode_rows=decode_rows,
            draft_rows=draft_rows,
            embedding_width=ScriptedVision.width if images else embedding_width,
            bidirectional_images=bidirectional_images,
            state_bytes=state_bytes,
            rollback_rows=rollback_rows,
            hidden_width=hidden_width,
            bidirectional=bidirectional,
            adapters=tuple(adapters),
            adapter_places=adapter_places,
        )
        self._seeds: dict[int, int] = {}
        """Parts of the hash of rows, by the numbers of adapters that were loaded at run time."""
        self._sparse = sparse
        self._mrope = mrope
        self._vision = ScriptedVision(part_seconds=image_part_seconds, sleep=sleep) if images else None
        self._alphabet = tuple(alphabet)
        self._interval = 1.0 / tokens_per_second if tokens_per_second else 0.0
        self._prefill_interval = 1.0 / prefill_tokens_per_second if prefill_tokens_per_second else 0.0
        self._clock = clock
        self._sleep = sleep
        self._next_tick = -math.inf
        self._history: list[list[int]] = [[0] for _ in range(slots)]
        self._states: list[list[int]] = [[0] for _ in range(slots)]
        """The recurrent state of each slot, behind those before the rows that can be taken back."""
        self._has_state = SlotStates(self._capabilities)
        self._broken: set[int] = set()
        """Slots whose last call failed."""
        self._kept: dict[int, int] = {}
        """Rows that a slot has at least if the drafts of its last decode step are rejected."""
        self._sampled: list[int | None] = []
        self.calls = 0
        self.violations: list[str] = []

    @property
    def capabilities(self) -> RunnerCapabilities:
        """The capabilities given to the constructor."""
        return self._capabilities

    def fits(self, rows: int) -> bool:
        """See `Runner.fits`: whatever its capabilities name."""
        return rows <= max(self._capabilities.decode_rows, self._capabilities.draft_rows)

    @property
    def draft_head(self) -> DraftHead | None:
        """None."""
        return None

    @property
    def adapter_slots(self) -> ScriptedAdapterSlots | None:
        """See `workers.engine.adapters.adapter_slots.HoldsAdapters`."""
        return ScriptedAdapterSlots(self._seeds.__setitem__) if self._capabilities.adapter_places else None

    @property
    def vision(self) -> ScriptedVision | None:
        """See `Runner.vision`."""
        return self._vision

    @property
    def attention(self) -> AttentionReader | None:
        """One head of one layer, whose queries are ones."""
        return AttentionReader((0,), self._queries, self._keys) if self._sparse else None

    def _queries(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        self._check_chunk(chunk)
        self.calls += 1
        for index, token in enumerate(chunk.tokens):
            self._write(chunk.slot, token, chunk.position_at(index))
        return [np.ones((len(chunk.tokens), 1, 1), np.float32)]

    def _keys(self, slot: int, layer: int, end: int) -> NDArray[np.float32]:
        hashes = self._history[slot][1 : end + 1]
        return np.array([value / MASK * 8 for value in hashes], np.float32).reshape(1, -1, 1)

    @property
    def graphs_failed(self) -> int:
        """0: nothing is compiled in the background."""
        return 0

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """See `Runner.prefill`."""
        self._check_call(chunks, specs)
        self.calls += 1
        if self._prefill_interval:
            self._sleep(self._prefill_interval * sum(len(chunk.tokens) for chunk in chunks))
        tokens: list[int | None] = []
        for chunk, spec in zip(chunks, specs, strict=True):
            self._take_back(chunk)
            for token, position in self._values(chunk):
                self._write(chunk.slot, token, position, chunk.adapter)
            self._settle_state(chunk.slot)
            tokens.append(None if spec is None else self._sample_last(chunk.slot, *with_masks([spec])))
        self._sampled = [token for token, spec in zip(tokens, specs, strict=True) if spec is not None]
        return tokens

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """See `Runner.hidden`. Each number is a function of the hash of its row and its place."""
        self._check_hidden(chunks)
        self.calls += 1
        if self._prefill_interval:
            self._sleep(self._prefill_interval * sum(len(chunk.tokens) for chunk in chunks))
        states: list[NDArray[np.float32]] = []
        for chunk in chunks:
            self._take_back(chunk)
            for index, token in enumerate(chunk.tokens):
                self._write(chunk.slot, token, chunk.position_at(index))
            hashes = self._history[chunk.slot][chunk.start + 1 :]
            if self._capabilities.bidirectional:
                whole = mix(hashes[-1] + zlib.crc32(bytes(chunk.token_types or ())))
                hashes = [mix(whole + index) for index in range(len(hashes))]
                self._history[chunk.slot] = [0]
            self._settle_state(chunk.slot)
            states.append(hidden_states(hashes, self._capabilities.hidden_width))
        self._sampled = []
        return states

    def _check_hidden(self, chunks: Sequence[Chunk]) -> None:
        with self._contract():
            check_hidden(self._capabilities, chunks)
        self._check_call(chunks, [None] * len(chunks), hidden=True)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """See `Runner.decode`."""
        if not rows:
            raise self._violation("decode without rows")
        if self._capabilities.bidirectional:
            raise self._violation("decode of a bidirectional model")
        chunks = chunks_of(rows)
        if len({chunk.slot for chunk in chunks}) != len(chunks):
            raise self._violation(f"rows of one slot that do not follow each other: {[row.slot for row in rows]}")
        if len(rows) > len(chunks) and not self.fits(len(rows)):
            raise self._violation(f"{len(rows)} rows of {len(chunks)} slots in a step")
        for chunk in chunks:
            self._check_slot(chunk.slot, chunk.start, len(chunk.tokens), chunk.tokens)
        with self._contract():
            for row in rows:
                check_row(row, sparse=self._sparse, mrope=self._mrope)
        self._check_states(chunks, decode=True)
        self.calls += 1
        self._pace()
        self._sampled = []
        for chunk in chunks:
            self._take_back(chunk)
            self._kept[chunk.slot] = chunk.start + 1
        written: list[int] = []
        for row in rows:
            self._write(row.slot, row.token, row.position, row.adapter)
            written.append(self._value(row.slot))
        for chunk in chunks:
            self._has_state.decoded(chunk.slot, len(chunk.tokens))
            del self._states[chunk.slot][: -1 - self._has_state.undoable(chunk.slot)]
        for row, spec, value in zip(rows, with_masks(row.sample for row in rows), written, strict=True):
            self._sampled.append(self._sample_or_none(row.slot, spec, value))
        return list(self._sampled)

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """Give the sampled token half of the mass, and each other token of the alphabet half of the rest."""
        sampled = [self._sampled[row] if 0 <= row < len(self._sampled) else None for row in rows]
        tokens = [token for token in sampled if token is not None]
        if len(tokens) < len(sampled):
            raise self._violation(f"log-probabilities of rows {list(rows)}, of tokens {self._sampled}")
        return [self._likely(token) for token in tokens]

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """The smallest chunk sizes."""
        return self._capabilities.prefill_chunks[:2]

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        """See `Runner.prefill_reported`. The greedy token of each row has the highest logit."""
        self._check_call([chunk], [spec])
        with self._contract():
            check_targets(self._capabilities, chunk, targets)
        self.calls += 1
        values = self._logits(chunk)
        token = None if spec is None else self._sample_last(chunk.slot, *with_masks([spec]))
        self._sampled = [] if spec is None else [token]
        return token, report_rows(values, targets)

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """See `Runner.logits`. The greedy token has the highest logit."""
        self._check_chunk(chunk)
        self._check_states([chunk], decode=False)
        self.calls += 1
        return self._logits(chunk)

    def _logits(self, chunk: Chunk) -> NDArray[np.float32]:
        values = np.zeros((len(chunk.tokens), self._capabilities.vocab_size), np.float32)
        self._take_back(chunk)
        for index, token in enumerate(chunk.tokens):
            self._write(chunk.slot, token, chunk.position + index, chunk.adapter)
            greedy = SampleSpec(Sampling(), chunk.position + index + 1)
            values[index, self._sample(self._value(chunk.slot), greedy)] = 4.0
        self._settle_state(chunk.slot)
        return values

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `Runner.copy_prefix`."""
        with self._contract():
            check_copy(self._capabilities, self._written, source, target, length)
        if source in self._broken and source == target and length == self._kept.get(source, 0) - 1:
            self._broken.discard(source)  # truncated to the rows before those that failed
        if source in self._broken or target in self._broken:
            raise self._violation(f"a copy from slot {source} to {target} after a failure, without a reset")
        back = self._has_state.copied(source, target, length, self._written(source))
        self._history[target] = self._history[source][: length + 1]
        if source != target or back != 0:
            self._states[target] = [0 if back is None else self._states[source][-1 - back]]
        self._kept.pop(target, None)

    def read_rows(self, slot: int, start: int, end: int) -> bytes:
        """See `Runner.read_rows`. A row is a little-endian number of 64 bits."""
        with self._contract():
            check_read(self._capabilities, self._written, slot, start, end)
        if slot in self._broken:
            raise self._violation(f"slot {slot} is read after a failure, without a reset")
        return struct.pack(f"<{end - start}Q", *self._history[slot][start + 1 : end + 1])

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """See `Runner.write_rows`."""
        with self._contract():
            count = check_write(self._capabilities, self._written, slot, start, len(rows))
        if slot in self._broken:
            raise self._violation(f"slot {slot} is used after a failure, without a reset")
        self._history[slot] += struct.unpack(f"<{count}Q", rows)
        self._states[slot] = [0]
        self._has_state.rows_written(slot)

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        """See `Runner.read_state`. It is a little-endian number of 64 bits, and zeros."""
        back = 0 if length is None else self._written(slot) - length
        with self._contract():
            self._has_state.check_read(slot, back)
        if slot in self._broken:
            raise self._violation(f"slot {slot} is read after a failure, without a reset")
        return struct.pack("<Q", self._states[slot][-1 - back]).ljust(self._capabilities.state_bytes, b"\0")

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        """See `Runner.write_state`."""
        with self._contract():
            self._has_state.check_write(slot, len(state))
        if slot in self._broken:
            raise self._violation(f"slot {slot} is used after a failure, without a reset")
        self._states[slot] = [struct.unpack_from("<Q", state)[0]]
        self._has_state.state_written(slot)

    def reset(self, slot: int) -> None:
        """See `Runner.reset`."""
        if not 0 <= slot < self._capabilities.slots:
            raise self._violation(f"reset of slot {slot}")
        self._history[slot], self._states[slot] = [0], [0]
        self._has_state.reset(slot)
        self._broken.discard(slot)
        self._kept.pop(slot, None)

    def memory(self) -> dict[str, int]:
        """Report 0 bytes."""
        return {"weights": 0, "kv": 0}

    def settle(self) -> None:
        """Return at once: there is no background work."""

    def close(self) -> None:
        """Has no effect."""

    def _check_call(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None], *, hidden: bool = False) -> None:
        with self._contract():
            check_call(self._capabilities, chunks, specs, hidden=hidden)
        self._check_states(chunks, decode=False)
        for chunk, spec in zip(chunks, specs, strict=True):
            self._check_chunk(chunk)
            with self._contract():
                check_sample(chunk, spec)

    def _check_chunk(self, chunk: Chunk) -> None:
        tokens: Sequence[int] = chunk.tokens
        if (embeddings := chunk.embeddings) is not None and embeddings.width == self._capabilities.embedding_width:
            tokens = [token for token in tokens if not embeddings.has(token)]
        self._check_slot(chunk.slot, chunk.start, len(chunk.tokens), tokens)
        with self._contract():
            check_positions(self._capabilities, chunk, sparse=self._sparse, mrope=self._mrope)

    def _values(self, chunk: Chunk) -> list[tuple[int, int]]:
        """Return what the hash of each row depends on, beside the rows before it: the token or the content of a row of
        embeddings, and the positions."""
        tokens = list(chunk.tokens)
        if chunk.embeddings is not None:
            ids = np.empty(len(tokens), np.int32)
            rows = np.zeros((len(tokens), self._capabilities.embedding_width), np.float32)
            chunk.embeddings.put(tokens, ids, rows)
            for at in np.flatnonzero(ids < 0).tolist():
                tokens[at] = mix(tokens[at]) ^ zlib.crc32(rows[at].tobytes())
        positions = [chunk.position_at(index) for index in range(len(tokens))]
        if chunk.axes is not None:
            positions = [on_axes(*each) for each in chunk.axes.T.tolist()]
        if chunk.ends is not None:
            ahead = (end - row - 1 for row, end in enumerate(chunk.ends, chunk.start))
            positions = [position + (more << 40) for position, more in zip(positions, ahead, strict=True)]
        return list(zip(tokens, positions, strict=True))

    def _check_slot(self, slot: int, start: int, length: int, tokens: Iterable[int]) -> None:
        if not 0 <= slot < self._capabilities.slots:
            raise self._violation(f"slot {slot} of {self._capabilities.slots}")
        if slot in self._broken:
            raise self._violation(f"slot {slot} is used after a failure, without a reset")
        if not self._kept.get(slot, self._written(slot)) <= start <= self._written(slot):
            raise self._violation(f"slot {slot} has {self._written(slot)} rows, the call writes at {start}")
        if start + length > self._capabilities.context:
            raise self._violation(f"rows {start} to {start + length} of a context of {self._capabilities.context}")
        if not all(0 <= token < self._capabilities.vocab_size for token in tokens):
            raise self._violation(f"tokens out of the vocabulary in slot {slot}")

    def _written(self, slot: int) -> int:
        return len(self._history[slot]) - 1

    def _write(self, slot: int, token: int, position: int, adapter: int = 0) -> None:
        token += self._seeds.get(adapter, adapter) << 32
        before = self._history[slot][-1]
        self._history[slot].append(mix(before * 0x9E3779B97F4A7C15 + token * 0x100000001B3 + position + 1))
        if self._capabilities.state_bytes:
            state = self._states[slot][-1]
            self._states[slot].append(mix(state * 0xD6E8FEB86659FD93 + token * 0x100000001B3 + position + 7))

    def _value(self, slot: int) -> int:
        """Return what the token after the last row follows from."""
        if not self._capabilities.state_bytes:
            return self._history[slot][-1]
        state = self._states[slot][-1]
        return mix(self._history[slot][-1] + state) if self._capabilities.row_bytes else state

    def _take_back(self, chunk: Chunk) -> None:
        """Drop the rows from the start of a chunk on, which are those of rejected drafts."""
        back = self._written(chunk.slot) - chunk.start
        del self._history[chunk.slot][chunk.start + 1 :]
        if back and self._capabilities.state_bytes:
            del self._states[chunk.slot][-back:]

    def _settle_state(self, slot: int) -> None:
        """Note the end of a call after which no row can be taken back."""
        del self._states[slot][:-1]
        self._has_state.prefilled(slot)

    def _check_states(self, chunks: Sequence[Chunk], *, decode: bool) -> None:
        if not self._capabilities.state_bytes:
            return
        written = [len(history) - 1 for history in self._history]
        with self._contract():
            self._has_state.check_call(written, chunks, decode=decode)

    def _sample_last(self, slot: int, spec: SampleSpec) -> int | None:
        return self._sample_or_none(slot, spec, self._value(slot))

    def _sample_or_none(self, slot: int, spec: SampleSpec, value: int) -> int | None:
        """Return None for non-finite logits, after which the slot must be reset."""
        if spec.edits is None or not np.isnan(spec.edits.bias).any():
            return self._sample(value, spec)
        self._broken.add(slot)
        return None

    def _sample(self, value: int, spec: SampleSpec) -> int:
        """Sample after the row whose hash is `value`."""
        if spec.sampling.temperature > 0.0:
            value = mix(value + spec.sampling.seed * 0xD6E8FEB86659FD93 + spec.position)
        if spec.edits is not None:
            value = mix(value + fingerprint(spec.edits))
        alphabet = self._alphabet if spec.mask is None else self._allowed(spec.mask)
        if spec.edits is not None and (banned := set(spec.edits.tokens[spec.edits.bias == -math.inf].tolist())):
            alphabet = [token for token in alphabet if token not in banned] or alphabet
        return alphabet[value % len(alphabet)]

    def _allowed(self, mask: NDArray[np.uint32]) -> Sequence[int]:
        """Return the allowed tokens of the alphabet, or all allowed tokens if there are none."""
        bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: self._capabilities.vocab_size]).tolist()
        if not allowed:
            raise self._violation("a mask that allows no token")
        return [token for token in self._alphabet if bits[token]] or allowed

    def _likely(self, token: int) -> RowLogprobs:
        others = [other for other in sorted(set(self._alphabet)) if other != token][: MAX_TOP_LOGPROBS - 1]
        logs = tuple(-math.log(2.0) * (place + 1) for place in range(len(others) + 1))
        return RowLogprobs(logs[0], (token, *others), logs)

    def _pace(self) -> None:
        if not self._interval:
            return
        now = self._clock()
        # After a pause the next step is due at once, and lost time is not made up for.
        self._next_tick = max(self._next_tick, now - self._interval) + self._interval
        if self._next_tick > now:
            self._sleep(self._next_tick - now)

    @contextmanager
    def _contract(self) -> Iterator[None]:
        """Raise the `ValueError` of a check as a violation."""
        try:
            yield
        except ValueError as error:
            raise self._violation(str(error)) from error

    def _violation(self, text: str) -> ContractError:
        self.violations.append(text)
        return ContractError(text)
