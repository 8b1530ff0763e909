"""State machine test: any order of submit, step, cancel, finish and failing calls keeps the engine's invariants.

One terminal event per stream, no leaked slot, no more rows than the pool has, first come first admitted among equally
urgent sequences of a tenant, no starvation, the step budget, and the tokens that each request would get alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

from protocol.errors import ErrorCode
from protocol.request import Sampling
from protocol.scheduling import LEVELS, NORMAL, SchedulerPolicy, Urgency
from tests.sampled import sampled
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.scheduling.preemption import PATIENCE_S
from workers.engine.step_result import StepResult
from workers.sampling.logprobs import RowLogprobs, report_rows
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

CONTEXT = 24
SIZES = (3, 6)
ALPHABET = tuple(range(5))
EOS = frozenset({4})
SAMPLINGS = (Sampling(), Sampling(temperature=0.9, seed=3), Sampling(temperature=1.1, seed=1 << 50))


TENANTS = ("", "b")
HEADROOMS = st.sampled_from([0.0, 0.3, 0.9])
URGENCIES = (NORMAL, NORMAL, Urgency(LEVELS["high"]), Urgency(LEVELS["low"]), Urgency(priority=-3))
SHORTEST: SchedulerPolicy = "shortest-uncached-first"


def scripted(slots: int, exact_rows: bool) -> "Recorder":
    return Recorder(
        slots=slots,
        context=CONTEXT,
        vocab_size=8,
        prefill_chunks=SIZES,
        exact_rows=exact_rows,
        alphabet=ALPHABET,
    )


class Recorder(ScriptedRunner):
    """Records the calls of the current step, and fails calls and resets on demand."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.chunks: list[Chunk] = []
        self.rows: list[DecodeRow] = []
        self.holder: Callable[[int], int | None]
        self.tenant: Callable[[int], str]
        self.owners: dict[int, str] = {}
        """The owner of the rows in each slot."""
        self.copied = 0
        self.begun: list[int] = []
        """The streams whose first chunk was asked for, in order; but those with a report of the prompt."""
        self.reported: list[int] = []
        """Likewise, those with a report."""
        self.failing_calls: list[bool] = []
        self.failing_resets = 0

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        assert not self.chunks, "a call of its own"
        self.chunks.append(chunk)
        stream = self.holder(chunk.slot)
        assert stream is not None
        if stream not in self.reported:
            self.reported.append(stream)
        assert self.owners.setdefault(chunk.slot, self.tenant(stream)) == self.tenant(stream)
        self._maybe_fail([chunk.slot])
        return super().prefill_reported(chunk, spec, targets)

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self.chunks += chunks
        for chunk in chunks:
            stream = self.holder(chunk.slot)
            assert stream is not None
            if stream not in self.begun:
                self.begun.append(stream)
            assert self.owners.setdefault(chunk.slot, self.tenant(stream)) == self.tenant(stream)
        self._maybe_fail([chunk.slot for chunk in chunks])
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.rows = list(rows)
        self._maybe_fail([row.slot for row in rows])
        return super().decode(rows)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        stream = self.holder(target)
        assert stream is not None
        if length:
            assert self.owners[source] == self.tenant(stream), "another tenant's rows"
        self._maybe_fail([target])
        super().copy_prefix(source, target, length)
        self.owners[target] = self.tenant(stream)
        self.copied += length

    def reset(self, slot: int) -> None:
        if self.failing_resets:
            self.failing_resets -= 1
            raise RuntimeError("fails on demand")
        super().reset(slot)
        self.owners.pop(slot, None)

    def _maybe_fail(self, slots: list[int]) -> None:
        if self.failing_calls and self.failing_calls.pop(0):
            self._broken.update(slots)
            raise RuntimeError("fails on demand")


@cache
def reference_report(prompt: tuple[int, ...]) -> tuple[RowLogprobs | None, ...]:
    """Return the log-probabilities of a prompt on a separate runner."""
    runner = ScriptedRunner(slots=1, context=CONTEXT, vocab_size=8, prefill_chunks=(CONTEXT,), alphabet=ALPHABET)
    return (None, *report_rows(runner.logits(Chunk(0, prompt, 0, 0)), prompt[1:]))


@cache
def reference(prompt: tuple[int, ...], sampling: Sampling, length: int) -> tuple[int, ...]:
    """Return the `length` tokens of a request on a separate runner, without an engine."""
    runner = ScriptedRunner(slots=1, context=CONTEXT, vocab_size=8, prefill_chunks=SIZES, alphabet=ALPHABET)
    for start in range(0, len(prompt), SIZES[-1]):
        part = prompt[start : start + SIZES[-1]]
        last = start + len(part) == len(prompt)
        (token,) = runner.prefill([Chunk(0, part, start, start)], [SampleSpec(sampling, len(prompt)) if last else None])
    assert token is not None
    tokens = [token]
    for index in range(len(prompt), len(prompt) + length - 1):
        tokens += sampled(runner.decode([DecodeRow(0, tokens[-1], index, index, SampleSpec(sampling, index + 1))]))
    return tuple(tokens)


def expected(request: EngineRequest) -> tuple[tuple[int, ...], str]:
    """Return the complete answer of a request, including resumed tokens, and the reason of its end."""
    room = CONTEXT - len(request.prompt)
    length = room if request.max_tokens is None else min(room, request.max_tokens)
    tokens = reference(request.prompt, request.sampling, length) if length else ()
    for index, token in enumerate(tokens):
        if token in request.eos:
            return tokens[: index + 1], "stop"
    return tokens, "length"


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 4),
        max_queue=st.integers(0, 4),
        step_tokens=st.integers(1, 20),
        kv_tokens=st.none() | st.integers(CONTEXT, 3 * CONTEXT),
        exact_rows=st.booleans(),
        policy=st.sampled_from(get_args(SchedulerPolicy)),
        prefixes=st.builds(
            PrefixPolicy, st.just(True) | st.booleans(), st.none() | st.integers(0, 40), st.just(1), HEADROOMS
        ),
        reserved_rows=st.integers(1, CONTEXT),
    )
    def make(
        self,
        slots: int,
        max_queue: int,
        step_tokens: int,
        kv_tokens: int | None,
        exact_rows: bool,
        policy: SchedulerPolicy,
        prefixes: PrefixPolicy,
        reserved_rows: int,
    ) -> None:
        self.now = 0.0
        self.runner = scripted(slots, exact_rows)
        self.slots, self.max_queue, self.step_tokens = slots, max_queue, step_tokens
        self.prefixes, self.policy = prefixes, policy
        self.pool = kv_tokens or slots * CONTEXT
        self.engine = BatchEngine(
            self.runner,
            max_queue=max_queue,
            step_tokens=step_tokens,
            kv_tokens=kv_tokens,
            prefixes=prefixes,
            policy=policy,
            reserved_rows=reserved_rows,
            clock=lambda: self.now,
        )
        self.runner.holder = self.engine._scheduler.slots.holder
        self.runner.tenant = lambda stream: self.asked[stream].tenant if stream in self.asked else ""
        self.asked: dict[int, EngineRequest] = {}
        self.got: dict[int, list[int]] = {}
        self.parts: dict[int, list[RowLogprobs | None]] = {}
        self.live: set[int] = set()
        self.terminals: dict[int, str] = {}
        self.completed = 0

    @rule(
        length=st.integers(1, CONTEXT - 1),
        sampling=st.sampled_from(SAMPLINGS),
        max_tokens=st.none() | st.integers(0, CONTEXT),
        eos=st.sampled_from((frozenset(), EOS)),
        split=st.none() | st.integers(0, CONTEXT),
        own=st.integers(0, CONTEXT),
        tenant=st.sampled_from(TENANTS),
        reports=st.booleans(),
        urgency=st.sampled_from(URGENCIES),
    )
    def submit(
        self,
        length: int,
        sampling: Sampling,
        max_tokens: int | None,
        eos: frozenset[int],
        split: int | None,
        own: int,
        tenant: str,
        reports: bool,
        urgency: Urgency,
    ) -> None:
        """Submit a prompt with the common prefix, which differs from token `own` on."""
        stream = len(self.asked)
        prompt = tuple(index % 8 if index < own else (stream >> 3 * (index - own)) & 7 for index in range(length))
        request = EngineRequest(
            stream, prompt, sampling, max_tokens, eos, tenant=tenant, prompt_logprobs=reports, urgency=urgency
        )
        if split is not None:
            request = replace(request, resume=expected(request)[0][:split])
        gauges = self.engine.gauges()
        free = self.slots - gauges.slots_active
        if gauges.queue_depth >= self.max_queue + free:
            with pytest.raises(RequestRefused) as refused:
                self.engine.submit(request)
            assert refused.value.code is ErrorCode.OVERLOADED
            return
        if gauges.queue_depth >= self.max_queue and self.dirty:
            return  # a slot that waits for its reset is not free: either answer is right
        self.engine.submit(request)
        self.asked[stream] = request
        self.got[stream] = list(request.resume)
        self.parts[stream] = []
        self.live.add(stream)

    @rule()
    def step(self) -> None:
        self._step()

    @rule(seconds=st.sampled_from((1.0, PATIENCE_S)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(outcomes=st.lists(st.booleans(), min_size=1, max_size=4))
    def failing_step(self, outcomes: list[bool]) -> None:
        self.runner.failing_calls = outcomes
        self._step()
        self.runner.failing_calls = []

    @rule(resets=st.integers(1, 3))
    def step_with_failing_resets(self, resets: int) -> None:
        self.runner.failing_resets = resets
        self._step()
        self.runner.failing_resets = 0

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 1 << 16), finish=st.booleans())
    def take_out(self, pick: int, finish: bool) -> None:
        stream = pick % len(self.asked)
        end = self.engine.finish(stream) if finish else self.engine.cancel(stream)
        assert (end is not None) == (stream in self.live)
        if end is not None:
            assert end.reason == ("stop" if finish else "cancelled")
            assert end.completion_tokens == len(self.got[stream])
            self.completed += finish
            self._end(stream, "taken out")

    @invariant()
    def the_runner_was_used_by_its_contract(self) -> None:
        if hasattr(self, "engine"):
            assert self.runner.violations == []
            for begun, urgency, tenant in product((self.runner.begun, self.runner.reported), URGENCIES, TENANTS):
                equal = [each for each in begun if each in self.asked and self._kind(each) == (urgency, tenant)]
                assert self.policy == SHORTEST or equal == sorted(equal), "first come, first admitted"
            assert self.prefixes.enabled or not self.runner.copied

    @invariant()
    def the_gauges_agree_with_what_is_known(self) -> None:
        if not hasattr(self, "engine"):
            return
        gauges = self.engine.gauges()
        assert gauges.slots_active + gauges.queue_depth == len(self.live)
        assert gauges.slots_active <= self.slots
        assert gauges.sequences_completed == self.completed
        assert self.engine.idle == (not self.live and not self.dirty)
        if not self.live:
            assert gauges.kv_tokens == 0
        slots = self.engine._scheduler.slots
        assert slots.free_rows >= 0, "more is promised than the pool holds"
        assert slots.reserved_rows + slots.retained_tokens <= self.pool
        for sequence in self.engine._scheduler._running():
            assert slots.rows(sequence.slot) == sequence.cached.rows <= sequence.reserved
        assert gauges.kv_tokens + gauges.retained_tokens <= self.pool
        assert gauges.prefix_tokens <= self.runner.copied

    def teardown(self) -> None:
        """All running sequences end within a bounded number of steps."""
        if not hasattr(self, "engine"):
            return
        # Whatever is preempted is computed again, and the first of all gets on in each step.
        bound = sum(CONTEXT + 1 for _ in self.live) * (1 + len(self.live)) + 1
        while not self.engine.idle:
            self._step()
            bound -= 1
            assert bound >= 0, "the engine does not come to an end"
        assert not self.live
        assert self.terminals.keys() == self.asked.keys()
        gauges = self.engine.gauges()
        assert (gauges.slots_active, gauges.queue_depth, gauges.kv_tokens) == (0, 0, 0)
        self._all_slots_are_free()

    def _kind(self, stream: int) -> tuple[Urgency, str]:
        return self.asked[stream].urgency, self.asked[stream].tenant

    @property
    def dirty(self) -> tuple[int, ...]:
        return self.engine._scheduler.slots.dirty

    def _all_slots_are_free(self) -> None:
        """As many requests as there are slots run side by side, so no slot is lost."""
        for stream in range(self.slots):
            self.engine.submit(EngineRequest(1000 + stream, (1,), max_tokens=4))
        self.engine.step()
        small = self.step_tokens < self.slots * 2
        assert self.engine.gauges().queue_depth == 0 or small or self.prefixes.headroom
        while not self.engine.idle:
            assert not self.engine.step().failed

    def _step(self) -> None:
        self.runner.chunks, self.runner.rows = [], []
        before = self.engine.gauges()
        busy, dirty = not self.engine.idle, self.dirty
        with capture_logs():
            result = self.engine.step()
        self._check_budget(before.slots_active)
        self._take(result)
        moved = self.runner.chunks or self.runner.rows or result.ends or result.failed
        assert moved or dirty or not busy, "a step without progress"
        after = self.engine.gauges()
        if self.prefixes.max_rows is not None:
            assert after.retained_tokens <= self.prefixes.max_rows
        assert after.steps == before.steps + busy
        assert after.steps_failed == before.steps_failed + result.failed
        assert after.decode_steps == before.decode_steps + bool(self.runner.rows)
        assert after.decode_tokens == before.decode_tokens + len(result.tokens)
        if not result.failed:
            assert after.prefill_tokens == before.prefill_tokens + sum(len(c.tokens) for c in self.runner.chunks)

    def _check_budget(self, active: int) -> None:
        """Tokens of a step stay within the budget, except for decode rows and one chunk."""
        tokens = sum(len(chunk.tokens) for chunk in self.runner.chunks)
        if len(self.runner.chunks) > 1:
            assert tokens + len(self.runner.rows) <= max(self.step_tokens, active)
        assert len({row.slot for row in self.runner.rows}) == len(self.runner.rows) <= self.slots

    def _has_all_parts(self, stream: int) -> None:
        request = self.asked[stream]
        reports = request.prompt_logprobs and not request.resume
        assert len(self.parts[stream]) == len(request.prompt) * reports

    def _take(self, result: StepResult) -> None:
        for part in result.prompt_parts:
            values = self.parts[part.stream]
            assert part.start == len(values)
            assert part.tokens == self.asked[part.stream].prompt[part.start : part.start + len(part.tokens)]
            values += part.logprobs
            assert tuple(values) == reference_report(self.asked[part.stream].prompt)[: len(values)]
        for item in result.tokens:
            self._has_all_parts(item.stream)
            self.got[item.stream].append(item.token)
            whole, _ = expected(self.asked[item.stream])
            assert self.got[item.stream] == list(whole[: len(self.got[item.stream])])
        for end in result.ends:
            whole, reason = expected(self.asked[end.stream])
            assert (tuple(self.got[end.stream]), end.reason) == (whole, reason)
            assert end.completion_tokens == len(whole)
            assert end.prompt_tokens == len(self.asked[end.stream].prompt)
            self._has_all_parts(end.stream)
            self.completed += 1
            self._end(end.stream, end.reason)
        for failure in result.failures:
            assert result.failed
            assert failure.code is ErrorCode.STEP
            self._end(failure.stream, "failed")

    def _end(self, stream: int, how: str) -> None:
        assert stream in self.live, f"stream {stream} ended twice: {self.terminals.get(stream)}, {how}"
        self.live.remove(stream)
        self.terminals[stream] = how


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase
