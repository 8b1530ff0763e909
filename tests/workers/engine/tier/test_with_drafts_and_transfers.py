"""Streams on two workers that draft tokens, share a prefix tier and move streams with their rows have the tokens and
log-probabilities of one worker that does none of it.

Cache is short, so that sequences are preempted and rows are evicted; streams are cancelled, and files are damaged.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.commands import ReadRows, WriteRows
from protocol.request import Bias, Sampling
from tests.grammar_matchers import matcher_of
from tests.workers.engine.harness.batched import drafting_with
from tests.workers.engine.harness.drafting import always
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.engine.step_result import Token
from workers.engine.tier.prefix_tier import PrefixTier
from workers.prefix_store.store import PrefixStore
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

VOCAB = 512
CONTEXT = 96
BLOCK_ROWS = 4
SMALL, SMALL_WITH_STATES = 1 << 16, 1 << 18
"""Bytes of a store of 16 files, and of 64: in 16, hardly any state is left by the time it is asked for."""
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.8, seed=5, logprobs=2),
    Sampling(presence_penalty=1.5, repetition_penalty=1.2, logprobs=0),
    Sampling(temperature=0.7, seed=9, logit_bias=(Bias(97, 2.0),)),
)


class Failing(ScriptedRunner):
    """Its answers repeat themselves often. So many of a thousand calls raise, and as many samples are not finite."""

    def __init__(self, seed: int = 0, failures: int = 0, state_bytes: int = 0) -> None:
        super().__init__(
            slots=3,
            context=CONTEXT,
            vocab_size=VOCAB,
            prefill_chunks=(4, 16),
            alphabet=(97, 98),
            decode_rows=9,
            state_bytes=state_bytes,
            rollback_rows=4 if state_bytes else 0,
        )
        self._randomness = random.Random(seed)
        self._failures = failures
        self.failed = 0

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self._maybe_raise(*(chunk.slot for chunk in chunks))
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._maybe_raise(*(row.slot for row in rows))
        return super().decode(rows)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._maybe_raise(target)
        super().copy_prefix(source, target, length)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        self._maybe_raise(slot)
        super().write_rows(slot, start, rows)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        self._maybe_raise(slot)
        super().write_state(slot, state)

    def _sample_or_none(self, slot: int, spec: SampleSpec, value: int) -> int | None:
        if not self._fails():
            return super()._sample_or_none(slot, spec, value)
        self._broken.add(slot)
        return None

    def _maybe_raise(self, *slots: int) -> None:
        if self._fails():
            self._broken.update(slots)
            raise RuntimeError("fails on demand")

    def _fails(self) -> bool:
        fails = self._randomness.randrange(1000) < self._failures
        self.failed += fails
        return fails


def asked(randomness: random.Random, stream: int) -> EngineRequest:
    """A random request; many have the beginning of their prompts in common."""
    shared = [97 + at * 7 // 3 % 2 for at in range(randomness.choice((0, 10, 24, 40)))]
    own = [randomness.choice((97, 98)) for _ in range(randomness.randint(1, 14))]
    return EngineRequest(
        stream,
        (*shared, *own),
        randomness.choice(SAMPLINGS),
        randomness.choice((None, 30, randomness.randint(1, 40))),
        eos=frozenset({VOCAB - 1}),
        tenant=randomness.choice(("", "", "b")),
        speculate=randomness.random() < 0.8,
    )


def resumed(request: EngineRequest, tokens: Sequence[Token]) -> EngineRequest:
    """The request after these tokens, with a constraint of its own where it has one."""
    resume = tuple(token.token for token in tokens)
    constraint = matcher_of(request.stream, VOCAB, resume) if request.stream % 3 == 0 else None
    return replace(request, resume=resume, constraint=constraint)


def plain(request: EngineRequest, state_bytes: int) -> list[Token]:
    """The tokens of a request alone, on a worker that reuses no rows and drafts nothing."""
    engine = BatchEngine(
        Failing(state_bytes=state_bytes), max_queue=1, step_tokens=64, prefixes=PrefixPolicy(enabled=False)
    )
    engine.submit(resumed(request, ()))
    tokens: list[Token] = []
    while not engine.idle:
        result = engine.step()
        assert not result.failures
        tokens += result.tokens
    return tokens


class Worker:
    """An engine with all three."""

    def __init__(
        self, directory: Path, got: dict[int, list[Token]], max_bytes: int, runner: Failing, draft: Failing | None
    ) -> None:
        self.runner = runner
        drafting = None if draft is None else drafting_with(draft, lambda: 3)
        times = itertools.count()
        self.tier = PrefixTier(
            PrefixStore(directory, max_bytes), self.runner, block_rows=BLOCK_ROWS, clock=lambda: next(times) / 100
        )
        self.engine = BatchEngine(
            self.runner,
            max_queue=99,
            step_tokens=24,
            kv_tokens=CONTEXT,
            reserved_rows=2,
            prefixes=PrefixPolicy(min_tokens=2),
            tier=self.tier,
            speculator=always(self.runner.capabilities, batched=drafting, beside_prompts=True),
            clock=lambda: next(times) / 1000,
            state_cache_bytes=16 * (STATE_BYTES + OVERHEAD_BYTES),
        )
        self.got = got
        self.live: dict[int, EngineRequest] = {}

    def submit(self, request: EngineRequest) -> None:
        self.engine.submit(resumed(request, self.got[request.stream]))
        self.live[request.stream] = request

    def plain(self, request: EngineRequest) -> list[Token]:
        """The tokens of a request on a worker without."""
        return plain(request, self.runner.capabilities.state_bytes)

    def step(self) -> None:
        result = self.engine.step()
        assert self.runner.failed or not result.failures
        for token in result.tokens:
            self.got[token.stream].append(token)
        for end in result.ends:
            request = self.live.pop(end.stream)
            assert self.got[end.stream] == self.plain(request), request
            assert end.completion_tokens == len(self.got[end.stream])
        for failure in result.failures:
            request = self.live.pop(failure.stream)
            assert self.got[failure.stream] == self.plain(request)[: len(self.got[failure.stream])], request
        slots = self.engine._scheduler.slots
        assert slots.free_rows >= 0
        for sequence in self.engine._scheduler._running():
            assert slots.rows(sequence.slot) == sequence.cached.rows <= sequence.reserved
        assert self.runner.violations == []


def move(one: Worker, other: Worker, request: EngineRequest, randomness: random.Random) -> bool:
    """Move a stream with its rows, as long as the other worker takes them, while the stream goes on. Returns whether
    rows were taken."""
    stream, start, transfer = request.stream, 0, randomness.getrandbits(40)
    while stream in one.live:
        read = one.engine.read_rows(ReadRows(1, transfer, stream, start, randomness.randint(1, 40)))
        if not read.tokens:
            break
        rows = bytes(read.rows)
        taken = other.engine.write_rows(WriteRows(2, transfer, request.tenant, start, read.tokens, rows, b""))
        if taken.rows != start + len(read.tokens):
            break
        start, size = taken.rows, read.state
        if size and randomness.random() < 0.3:
            start = move_state(one, other, request, (transfer, start, randomness.choice((5, size)))) or start
            break
        if randomness.random() < 0.4:
            one.step()
        if randomness.random() < 0.2:
            other.step()
    if one.live.pop(stream, None) is not None:
        assert one.engine.cancel(stream) is not None
        other.submit(request)
    return start > 0


def move_state(one: Worker, other: Worker, request: EngineRequest, at: tuple[int, int, int]) -> int:
    """Move the recurrent state of a stream in parts, with the rows before it that are missing, while the stream goes
    on. Returns the rows that the other worker has then; 0 if it took not all."""
    transfer, start, most = at
    offset = held = 0
    while held == 0 or offset < STATE_BYTES:
        read = one.engine.read_rows(ReadRows(1, transfer, request.stream, offset, most, state=True))
        if not read.rows or held not in (0, read.held):
            return 0
        held, state = read.held, bytes(read.rows)
        given = WriteRows(2, transfer, request.tenant, offset, (), state, b"", held)
        if not other.engine.write_rows(given).rows:
            return 0
        offset += len(state)
        if offset == len(state):
            one.step()
    if held > start:
        rows = one.engine.read_rows(ReadRows(1, transfer, request.stream, start, held - start))
        given = WriteRows(2, transfer, request.tenant, start, rows.tokens, bytes(rows.rows), b"")
        return other.engine.write_rows(given).rows
    return held


@pytest.mark.parametrize(
    ("failures", "drafts", "state_bytes"),
    [
        (0, (), 0),
        (0, (0, 0), 0),
        (10, (), 0),
        (10, (2, 0), 0),
        (0, (0, 0), STATE_BYTES),
        (10, (2, 0), STATE_BYTES),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_streams_are_those_of_a_worker_without(
    seed: int,
    failures: int,
    drafts: tuple[int, ...],
    state_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`drafts` are the failures of the draft model of each worker; one that has failed drafts no more."""
    monkeypatch.setattr(
        "workers.engine.tier.save_budget.BURST_S", 60.0
    )  # what is saved does not depend on this machine
    randomness = random.Random(seed)
    got: dict[int, list[Token]] = {}
    workers = [
        Worker(
            tmp_path / "store",
            got,
            randomness.choice((SMALL_WITH_STATES if state_bytes else SMALL, 1 << 24)),
            Failing(number + 2 * seed, failures, state_bytes),
            Failing(seed, drafts[number]) if drafts else None,
        )
        for number in range(2)
    ]
    requests = [asked(randomness, stream) for stream in range(40)]
    waiting, moved = list(requests), 0
    with capture_logs():
        while waiting or any(worker.live for worker in workers):
            one, other = randomness.sample(workers, 2)
            chance = randomness.random()
            live = list(one.live.values())
            if chance < 0.2 and waiting:
                request = waiting.pop()
                got[request.stream] = []
                one.submit(request)
            elif chance < 0.34 and live:
                moved += move(one, other, randomness.choice(live), randomness)
            elif chance < 0.37 and live:
                stream = randomness.choice(live).stream
                assert one.engine.cancel(stream) is not None
                assert got[stream] == one.plain(one.live.pop(stream))[: len(got[stream])]
            elif chance < 0.39:
                for worker in workers:
                    worker.engine.settle()
                _damage(tmp_path / "store", randomness)
            elif chance < 0.47:
                one.engine.settle()
            else:
                one.step()
    gauges = [worker.engine.gauges() for worker in workers]
    assert min(sum(each.accepted_tokens for each in gauges), moved)
    assert failures or sum(each.preemptions for each in gauges)
    assert sum(each.stored_tokens for each in gauges), "rows of the tier were used, and states"
    for worker in workers:
        while not worker.engine.idle:
            worker.step()
        assert (worker.engine.gauges().slots_active, worker.engine.gauges().kv_tokens) == (0, 0)
        worker.engine.close()


def _damage(directory: Path, randomness: random.Random) -> None:
    """Change a byte of a block, or remove one."""
    files = sorted(file for file in directory.iterdir() if len(file.name) == 65)
    if files:
        file = randomness.choice(files)
        if randomness.random() < 0.5:
            file.unlink(missing_ok=True)
        else:
            data = bytearray(file.read_bytes())
            data[randomness.randrange(len(data))] ^= 1
            file.write_bytes(data)
