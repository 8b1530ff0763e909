"""The life of sequences with deaths at every point: the real router and the real worker's code, in any interleaving.

Checked throughout: a live sequence is in one place, every change of the real code is a step of the table of a
sequence's life (`journal.LIFE`), and what was delivered is the beginning of the undisturbed answer. Checked at the end:
every sequence ended once, with just that answer, or with an error for which there was reason; and that every step of
the table was taken by some sequence.
"""

import asyncio
import functools
import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from actors.process.exit_cause import Origin
from actors.supervision.worker import WorkerState
from gateway.errors import RequestError
from gateway.generation.request import SequenceRequest
from gateway.openai.decoding import RequestDecoder
from gateway.routing.failure_attribution import MAX_TRIES, suspect
from gateway.routing.quarantine import REFUSED_AFTER
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from protocol.request import Input
from tests.gateway.faults.journal import LIFE, Journal, Phase
from tests.gateway.harness.engines import Answer, EngineWorker, answer_of, undisturbed
from tests.gateway.harness.virtual import VirtualLoop

WORKERS = ("a", "b", "s")
UNLIKE = "s"
"""Computes the same tokens, and says that it may not."""
TIMEOUT_S = 3600.0
PLACES = 8
"""Places of new sequences in the queue."""
rarely = st.sampled_from([False] * 9 + [True])
worker_names = st.sampled_from(WORKERS)


class StreamLife(RuleBasedStateMachine):
    """Two workers, a standby, and what may happen to them and to their clients."""

    groups = Bundle("groups")

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.journal = journal
        self.loop = VirtualLoop()
        self.texts: dict[LiveSequence, str] = {}
        self.reasons: Counter[LiveSequence] = Counter()
        self.deaths: Counter[LiveSequence] = Counter()
        """At which it was there; one from within counts as two from outside."""
        self.expected: dict[LiveSequence, Answer] = {}
        self.inputs: dict[LiveSequence, Input] = {}
        """Copies of the inputs, which a sequence drops when it ends."""
        self.cancelled: set[RequestGroup] = set()
        self.shut = False
        self._do(self._begin)

    def _begin(self) -> None:
        chosen = GatewaySettings(
            worker_wait_s=1e4,
            max_waiting_streams=PLACES,
            request_timeout_s=TIMEOUT_S,
            scheduler_policy="shortest-uncached-first",
        )
        self.decoder = RequestDecoder(chosen)
        self.router = Router(chosen)
        roles = {"s": Role.STANDBY}
        self.workers = {name: EngineWorker(name, slots=2, queue=0) for name in WORKERS}
        status = self.workers[UNLIKE].status
        assert status.hello is not None
        other = msgspec.structs.replace(status.hello, config_digest="another")
        self.workers[UNLIKE].status = msgspec.structs.replace(status, hello=other)
        for name, worker in self.workers.items():
            worker.join(self.router, roles.get(name, Role.ACTIVE))

    def _do(self, act: Callable[[], Any], seconds: float = 0.0) -> Any:
        async def run() -> Any:
            done = act()
            await asyncio.sleep(seconds)
            return done

        return self.loop.run_until_complete(run())

    @rule(
        target=groups,
        n=st.integers(1, 3),
        stop=st.sampled_from([(), ("e",), ("é", "zz"), ("ez ",)]),
        limit=st.integers(1, 30),
        heat=st.sampled_from([0, 1]),
        stream=st.booleans(),
        prompt=st.sampled_from(["p", "another prompt", "x" * 70]),
        client=st.sampled_from(["", "one", "two"]),
    )
    def open(
        self, n: int, stop: tuple[str, ...], limit: int, heat: int, stream: bool, prompt: str, client: str
    ) -> RequestGroup | MultipleResults[RequestGroup]:
        body = {"model": "tiny", "n": n, "max_tokens": limit, "temperature": heat, "stream": stream, "prompt": prompt}
        plan = self.decoder.completion(json.dumps(body | {"stop": stop, "seed": 5}).encode()).request
        try:
            waiting = self.router.waiting()["tiny"]
            group: RequestGroup = self._do(lambda: self.router.admission.open(plan, "r", client=client))
        except RequestError as error:
            full = error.code is ErrorCode.OVERLOADED and waiting + n > PLACES
            if not full and not self._rightly_refused(ErrorCode(error.code), plan.sequences[0]):
                raise
            return multiple()
        for each in group.sequences:
            self.expected[each] = self._do(functools.partial(undisturbed, each.submit))
            self.inputs[each] = each.submit.input
            self.texts[each] = ""
        return group

    def _rightly_refused(self, code: ErrorCode, choice: SequenceRequest) -> bool:
        if code is ErrorCode.UNAVAILABLE:  # all that are there fail what they get
            now = self.loop.time()
            return not any(handle.admits(now) for handle in self.router.pool) and any(map(self._runs, WORKERS))
        verdicts = self._verdicts(choice)
        return (code is ErrorCode.DRAINING and self.shut) or (
            code is ErrorCode.QUARANTINED and verdicts >= REFUSED_AFTER
        )

    def _verdicts(self, choice: SequenceRequest) -> int:
        """Return the number of times that such a request was quarantined."""
        return sum(
            self.inputs[sequence] == choice.input
            and sequence.submit.sampling.temperature == choice.sampling.temperature
            for sequence in self.expected
            if sequence.failure is not None and sequence.failure.code is ErrorCode.QUARANTINED
        )

    @rule(times=st.integers(1, 8))
    def all_step(self, times: int) -> None:
        for _ in range(times):
            for name in WORKERS:
                self.step(name)

    @rule(name=worker_names)
    def step(self, name: str) -> None:
        if self._runs(name):
            self._do(self.workers[name].step)
        if self._runs(name) and self.workers[name].told_to_stop:
            self.end(name, "leaves")

    @rule(name=worker_names, times=st.sampled_from([1, 1, 1, 5]))
    def steps_fail(self, name: str, times: int) -> None:
        for _ in range(times):
            if self._runs(name):
                self._do(self.workers[name].answer)  # what ends makes room for others, which then are in the step
                ran = list(self.router.pool[name].live.values())
                self.deaths.update(dict.fromkeys(ran, MAX_TRIES // 2))
                self._do(self.workers[name].fail_step)

    @rule(name=worker_names)
    def link_has_no_room(self, name: str) -> None:
        self.workers[name].full = not self.workers[name].full

    @rule()
    def change_places(self) -> None:
        """As a rolling restart does."""
        handles = list(self.router.pool)
        active = next(handle for handle in handles if handle.role is Role.ACTIVE)
        standby = next(handle for handle in handles if handle.role is Role.STANDBY)
        self._do(functools.partial(self.router.pool.swap, active, standby))

    @rule(really=rarely, at_once=st.booleans())
    def gateway_ends(self, really: bool, at_once: bool) -> None:
        if really:
            self.shut = True
            self._do(self.router.admission.drain_nowait)
            if at_once:
                self._do(functools.partial(self.router.ends.fail_all, "the gateway is shutting down"))

    @rule(
        name=worker_names,
        how=st.sampled_from(
            ["dies", "dies before its frames arrive", "is killed", "is replaced", "fails with last words", "leaves"]
        ),
    )
    def end(self, name: str, how: str) -> None:
        if not self._runs(name):
            return
        worker = self.workers[name]
        if how == "dies before its frames arrive":
            self._do(lambda: worker.step(arrives=False))
        if how in ("leaves", "fails with last words"):
            self._do(worker.answer)
        if how != "leaves":
            weight = 1 if how == "is killed" else MAX_TRIES // 2
            self.deaths.update(dict.fromkeys(self.router.pool[name].live.values(), weight))
        fail = functools.partial(worker.leave, ErrorCode.LOST)
        kill = functools.partial(worker.die, origin=Origin.OUTSIDE)
        ends: dict[str, Callable[[], None]] = {
            "is killed": kill,
            "is replaced": worker.restart,
            "leaves": worker.leave,
            "fails with last words": fail,
        }
        self._do(ends.get(how, worker.die))

    def _runs(self, name: str) -> bool:
        return self.workers[name].status.state is WorkerState.READY

    @rule(group=groups, times=st.integers(2, 4))
    def kill_each_worker_that_it_gets(self, group: RequestGroup, times: int) -> None:
        for _ in range(times):
            name = next((sequence.worker for sequence in group.sequences if sequence.worker), "")
            if name:
                self.end(name, "dies")
                self.come_back(name)

    @rule(name=worker_names)
    def migrate(self, name: str) -> None:
        self._do(lambda: self.router.migrate(name))

    @rule(name=worker_names)
    def come_back(self, name: str) -> None:
        if not self._runs(name):
            self._do(self.workers[name].come_back)

    @rule(group=groups)
    def take(self, group: RequestGroup) -> None:
        for piece in self._do(group.take):
            sequence = group.sequences[piece.index]
            self.texts[sequence] += piece.text
            self.reasons[sequence] += piece.stop is not None

    @rule(group=groups, really=st.sampled_from([False, False, False, True]))
    def client_leaves(self, group: RequestGroup, really: bool) -> None:
        if really:
            self.cancelled.add(group)
            self._do(group.cancel_nowait)

    @rule(seconds=st.sampled_from([0.01, 0.3, 30.0, 30.0, TIMEOUT_S + 30.0]))
    def wait(self, seconds: float) -> None:
        self._do(lambda: None, seconds)

    @invariant()
    def a_live_sequence_is_in_one_place(self) -> None:
        live = self.router._placement.live()
        assert len(live) == len(set(live))
        assert set(live) == {sequence for sequence in self.expected if not sequence.ended}
        for sequence in self.expected:
            phase = Phase.ENDED if sequence.ended else Phase.PLACED if sequence.worker else Phase.WAITING
            assert self.journal.phase(sequence) is phase
        queue = self.router._placement.queue
        new = [sequence for sequence in queue if not sequence.had_turn]
        assert queue.turns("tiny").held() == Counter(sequence.terms.client for sequence in new)
        assert set(queue.of("tiny")) == set(queue)
        assert not self.journal.illegal
        for handle in self.router.pool:
            assert sum(suspect(sequence) for sequence in handle.live.values()) <= 1, "suspects run apart"

    @invariant()
    def what_was_delivered_is_the_beginning_of_the_answer(self) -> None:
        for sequence, answer in self.expected.items():
            assert answer.tokens[: len(sequence.tokens)] == tuple(sequence.tokens)
            assert answer.text.startswith(self.texts[sequence])

    def teardown(self) -> None:
        for name in WORKERS:
            self.workers[name].full = False
            if not self.router.pool[name].ready:
                self._do(self.workers[name].restart)
        for _ in range(2000):
            for name in WORKERS:
                self._do(self.workers[name].step)
            for group in {sequence.request for sequence in self.expected}:
                self.take(group)
                if group.failure is not None:
                    self._do(group.cancel_nowait)  # as the endpoint does, which frees the rest of the request
            if all(sequence.ended for sequence in self.expected):
                break
            self._do(lambda: None, 0.3)
        self._check_ends()
        self.journal.forget()
        self.loop.close()

    def _check_ends(self) -> None:
        for sequence, answer in self.expected.items():
            assert sequence.ended
            if sequence.usage is not None:
                assert answer_of(sequence, self.texts[sequence]) == answer
                assert self.reasons[sequence] == 1
                assert sequence.continued == self.journal.mixed(sequence)
            elif sequence.failure is not None:
                self._check_failure(sequence, sequence.failure.code)
            else:
                assert sequence.request in self.cancelled or sequence.request.failure is not None
        assert self.router.waiting() == {"tiny": 0}
        self.loop.run_until_complete(self.router.idle())

    def _check_failure(self, sequence: LiveSequence, code: ErrorCode) -> None:
        if code in (ErrorCode.QUARANTINED, ErrorCode.STEP):
            assert self.deaths[sequence] >= MAX_TRIES, "one death, or a few from outside, are not attributed"
        elif code is ErrorCode.OVERLOADED:
            assert not sequence.waited or not sequence.had_turn, "only new requests are refused, or displaced"
            assert not sequence.tokens
        elif code is ErrorCode.DEADLINE:
            assert self.loop.time() - sequence.opened_at >= TIMEOUT_S
        else:
            assert (code, self.shut) == (ErrorCode.DRAINING, True), sequence.failure


def test_streams_live_through_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    journal = Journal(monkeypatch)

    class Journaled(StreamLife):
        def __init__(self) -> None:
            super().__init__(journal)

    # Hypothesis has the same examples each time in CI, unless set otherwise.
    chosen = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=False)
    for _ in range(5):  # what is rare may be missing once
        run_state_machine_as_test(Journaled, settings=chosen)
        if set(journal.taken) == set(LIFE):
            return
    pytest.fail(f"steps that no sequence ever takes: {set(LIFE) - set(journal.taken)}")
