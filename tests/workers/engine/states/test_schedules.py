"""Any schedule of a model with recurrent state gives each request the tokens of a cold run alone.

Prompts share prefixes and continue answers; requests are cancelled, preempted and resumed, calls fail, and drafts are
verified. The snapshots stay within their bound, and no tenant's rows or states come to another one.
"""

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from protocol.request import Sampling
from protocol.scheduling import LEVELS, NORMAL, Urgency
from tests.gate import alone
from tests.workers.engine.harness.drafting import always
from tests.workers.engine.states.stateful import CONTEXT, StatefulRunner
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.speculator import Speculator
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.scripted.runner import ROW_BYTES, STATE_BYTES

ONE = STATE_BYTES + OVERHEAD_BYTES
SAMPLINGS = (Sampling(), Sampling(temperature=0.9, seed=3))
URGENCIES = (NORMAL, NORMAL, Urgency(LEVELS["high"]), Urgency(LEVELS["low"]))


@cache
def cold(prompt: tuple[int, ...], sampling: Sampling, max_tokens: int, exact: bool, row_bytes: int) -> tuple[int, ...]:
    """Return the tokens of a request on a separate engine that reuses nothing."""
    runner = StatefulRunner(slots=1, exact_rows=exact, row_bytes=row_bytes)
    return tuple(alone(runner, EngineRequest(0, prompt, sampling, max_tokens)))


class Guess(Drafter):
    """Drafts what the request gets alone, and here and there another token."""

    def __init__(self, sequence: EngineSequence, answer: tuple[int, ...], randomness: random.Random) -> None:
        self._sequence, self._answer, self._randomness = sequence, answer, randomness

    def draft(self, most: int) -> list[int]:
        at = self._sequence.completion_tokens
        wrong = self._randomness.random
        return [token if wrong() < 0.7 else (token + 1) % 5 for token in self._answer[at : at + most]]


class Schedule:
    """An engine with all that it was asked and has answered."""

    def __init__(self, options: dict[str, Any], randomness: random.Random) -> None:
        self.exact: bool = options["exact_rows"]
        self.row_bytes: int = options["row_bytes"]
        self.randomness = randomness
        drafts = self.exact and options["rollback_rows"] > 1
        self.runner = StatefulRunner(
            slots=options["slots"],
            exact_rows=self.exact,
            row_bytes=self.row_bytes,
            decode_rows=10 if drafts else 0,
            draft_rows=16 if drafts else 0,
            rollback_rows=options["rollback_rows"],
        )
        self.max_bytes: int = options["snapshots"] * ONE
        times = itertools.count()
        self.engine = BatchEngine(
            self.runner,
            max_queue=99,
            step_tokens=options["step_tokens"],
            kv_tokens=options["kv_tokens"] if self.exact else None,  # what is preempted is prefilled again
            prefixes=PrefixPolicy(min_tokens=1),
            reserved_rows=options["reserved_rows"],
            state_cache_bytes=self.max_bytes,
            speculator=self._speculator() if drafts else None,
            clock=lambda: next(times) / 1000,
        )
        self.runner.tenant_of = self._tenant_of
        self.asked: dict[int, EngineRequest] = {}
        self.answers: dict[int, tuple[int, ...]] = {}
        self.got: dict[int, list[int]] = {}
        self.ended: dict[int, str] = {}

    def submit(self, request: EngineRequest, *, resumes: int) -> None:
        """Submit a request, which resumes so many tokens of its answer."""
        assert request.max_tokens is not None
        answer = cold(request.prompt, request.sampling, request.max_tokens, self.exact, self.row_bytes)
        if self.exact:  # otherwise prefill and decode differ, and so do the answers
            request = replace(request, resume=answer[:resumes])
        self.asked[request.stream], self.answers[request.stream] = request, answer
        self.got[request.stream] = list(request.resume)
        self.engine.submit(request)

    def step(self) -> None:
        with capture_logs():
            result = self.engine.step()
        for token in result.tokens:
            self.got[token.stream].append(token.token)
        for end in result.ends:
            self.ended[end.stream] = "end"
            assert end.cached_tokens <= len(self.asked[end.stream].prompt) + len(self.asked[end.stream].resume) - 1
        for failure in result.failures:
            self.ended[failure.stream] = "failure"
        self.check()

    def check(self) -> None:
        store = self.engine.snapshots
        assert self.runner.violations == []
        assert store is not None
        assert store.used_bytes == len(store) * ONE <= self.max_bytes
        for stream, tokens in self.got.items():
            whole = self.answers[stream]
            assert tuple(tokens) == whole[: len(tokens)], f"stream {stream} of {self.asked[stream]}"
            assert len(tokens) == len(whole) or self.ended.get(stream) != "end"

    def _tenant_of(self, slot: int) -> str:
        stream = self.engine._scheduler.slots.holder(slot)
        return "" if stream is None or stream < 0 else self.asked[stream].tenant

    def _speculator(self) -> Speculator:
        """A speculator for which a step has at times no more rows than `decode_rows`."""
        fits = self.randomness.random
        return always(self.runner.capabilities, self._drafters, beside_prompts=True, fits=lambda rows: fits() < 0.7)

    def _drafters(self, sequence: EngineSequence) -> list[Drafter]:
        return [Guess(sequence, self.answers[sequence.request.stream], self.randomness)]


@contextmanager
def schedule(options: dict[str, Any], seed: int = 0) -> Iterator[Schedule]:
    """Run a schedule to its end."""
    made = Schedule(options, random.Random(seed))
    yield made
    for _ in range(2000):
        if made.engine.idle:
            break
        made.step()
    assert made.engine.idle
    assert made.ended.keys() == made.asked.keys()


def options(randomness: random.Random) -> dict[str, Any]:
    """Return how an engine is made."""
    choose = randomness.choice
    return {
        "slots": randomness.randint(1, 4),
        "exact_rows": randomness.random() < 0.8,
        "row_bytes": choose((ROW_BYTES, ROW_BYTES, 0)),
        "rollback_rows": choose((0, 2, 4, 10)),
        "snapshots": choose((0, 1, 2, 3, 6, 20, 100)),
        "step_tokens": randomness.randint(4, 20),
        "kv_tokens": choose((None, CONTEXT, CONTEXT + 20, 2 * CONTEXT)),
        "reserved_rows": choose((1, 4, CONTEXT)),
    }


def ask(run: Schedule, randomness: random.Random) -> None:
    """Submit a request: the common prefix and its own tokens, or what an earlier one had, answer included."""
    stream = len(run.asked)
    tenant, length = randomness.choice(("", "", "b")), randomness.randint(1, CONTEXT - 12)
    common = randomness.choice((0, 12, 13, 20, length))
    prompt = tuple(index % 8 if index < common else randomness.randrange(8) for index in range(length))
    earlier = run.asked.get(randomness.randrange(2 * stream + 1))
    if earlier is not None and earlier.tenant == tenant:
        answer = run.got[earlier.stream]
        prompt = (*earlier.prompt, *answer[: randomness.randint(0, len(answer))], *prompt[:6])[: CONTEXT - 12]
        if randomness.random() < 0.3:
            prompt = earlier.prompt
    request = EngineRequest(
        stream,
        prompt,
        randomness.choice(SAMPLINGS),
        randomness.choice((1, 4, CONTEXT - len(prompt))),
        tenant=tenant,
        urgency=randomness.choice(URGENCIES) if run.exact else NORMAL,
    )
    run.submit(request, resumes=randomness.choice((0, 0, 1, 3)))


def play(run: Schedule, randomness: random.Random) -> None:
    """Carry out one operation of a schedule."""
    what = randomness.random()
    if what < 0.3:
        ask(run, randomness)
    elif what < 0.36 and run.asked:
        stream = randomness.choice(list(run.asked))
        if run.engine.cancel(stream) is not None:
            run.ended[stream] = "cancelled"
    elif what < 0.4:
        run.runner.failing = randomness.randint(1, 2)
        run.step()
        run.runner.failing = 0
    else:
        run.step()
    run.check()


# A schedule is a function of its seed, which cannot be made simpler.
@settings(max_examples=80, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 1 << 32))
def test_all_tokens_are_those_of_a_cold_run_alone(seed: int) -> None:
    randomness = random.Random(seed)
    with schedule(options(randomness), seed) as run:
        for _ in range(40):
            play(run, randomness)
    gauges = run.engine.gauges()
    event(f"snapshots used: {run.runner.written > 0}")
    event(f"preempted: {gauges.preemptions > 0}")
    event(f"drafts rejected: {gauges.draft_tokens > gauges.accepted_tokens}")
    assert gauges.prefix_tokens <= run.runner.copied
