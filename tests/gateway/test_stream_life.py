"""The life of streams with deaths at every point: the real router and the real worker's code, in any interleaving.

Checked throughout: a live sequence is in one place, and what was delivered is the beginning of the undisturbed answer.
Checked at the end: every sequence ended once, and unless it was cancelled or quarantined, with just that answer.
"""

import asyncio
import functools
import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

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

from actors.origin import Origin
from actors.worker import WorkerState
from gateway.errors import ApiError
from gateway.quarantine import REFUSED_AFTER
from gateway.requests import Choice, RequestDecoder
from gateway.router import Router
from gateway.settings import GatewaySettings
from gateway.streams import Call, Stream
from gateway.suspicion import MAX_TRIES, suspect
from gateway.workers import Role
from protocol.errors import ErrorCode
from tests.gateway.engines import Answer, EngineWorker, answer_of, undisturbed
from tests.gateway.virtual import VirtualLoop

WORKERS = ("a", "b", "s")
worker_names = st.sampled_from(WORKERS)


class StreamLife(RuleBasedStateMachine):
    """Two workers, a standby, and what may happen to them and to their clients."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.texts: dict[Stream, str] = {}
        self.reasons: Counter[Stream] = Counter()
        self.deaths: Counter[Stream] = Counter()
        """At which it was there; one from within counts as two from outside."""
        self.expected: dict[Stream, Answer] = {}
        self.let_go: set[Call] = set()
        self._do(self._begin)

    def _begin(self) -> None:
        chosen = GatewaySettings(worker_wait_s=1e4, max_waiting_streams=1000)
        self.decoder = RequestDecoder(chosen)
        self.router = Router(chosen)
        roles = {"s": Role.STANDBY}
        self.workers = {
            name: EngineWorker(name, slots=2).join(self.router, roles.get(name, Role.ACTIVE)) for name in WORKERS
        }

    def _do(self, act: Callable[[], Any], seconds: float = 0.0) -> Any:
        async def run() -> Any:
            done = act()
            await asyncio.sleep(seconds)
            return done

        return self.loop.run_until_complete(run())

    def _worker(self, name: str) -> EngineWorker:
        worker = self.workers[name]
        assert isinstance(worker, EngineWorker)
        return worker

    @rule(
        target=calls,
        n=st.integers(1, 3),
        stop=st.sampled_from([(), ("e",), ("é", "zz"), ("ez ",)]),
        limit=st.integers(1, 30),
        heat=st.sampled_from([0, 1]),
        stream=st.booleans(),
        prompt=st.sampled_from(["p", "another prompt", "x" * 70]),
    )
    def open(
        self, n: int, stop: tuple[str, ...], limit: int, heat: int, stream: bool, prompt: str
    ) -> Call | MultipleResults[Call]:
        body = {"model": "tiny", "n": n, "max_tokens": limit, "temperature": heat, "stream": stream, "prompt": prompt}
        plan = self.decoder.completion(json.dumps(body | {"stop": stop}).encode())
        try:
            call: Call = self._do(lambda: self.router.open(plan, "r"))
        except ApiError as error:
            if error.code != ErrorCode.QUARANTINED or self._verdicts(plan.choices[0]) < REFUSED_AFTER:
                raise
            return multiple()
        for each in call.streams:
            self.expected[each] = self._do(functools.partial(undisturbed, each.submit))
            self.texts[each] = ""
        return call

    def _verdicts(self, choice: Choice) -> int:
        """How often such a request was quarantined."""
        return sum(
            stream.submit.input == choice.input and stream.submit.sampling.temperature == choice.sampling.temperature
            for stream in self.expected
            if stream.failure is not None
        )

    @rule(times=st.integers(1, 8))
    def all_step(self, times: int) -> None:
        for _ in range(times):
            for name in WORKERS:
                self.step(name)  # type: ignore[arg-type]

    @rule(name=worker_names)
    def step(self, name: str) -> None:
        if self._runs(name):
            self._do(self._worker(name).step)

    @rule(
        name=worker_names,
        how=st.sampled_from(
            ["dies", "dies before its frames arrive", "is killed", "is replaced", "fails with last words", "leaves"]
        ),
    )
    def end(self, name: str, how: str) -> None:
        if not self._runs(name):
            return
        worker = self._worker(name)
        if how == "dies before its frames arrive":
            self._do(lambda: worker.step(arrives=False))
        if how in ("leaves", "fails with last words"):
            self._do(worker.answer)
        if how != "leaves":
            weight = 1 if how == "is killed" else MAX_TRIES // 2
            self.deaths.update(dict.fromkeys(self.router.roster[name].live.values(), weight))
        fail = functools.partial(worker.leave, ErrorCode.LOST)
        kill = functools.partial(worker.die, origin=Origin.OUTSIDE)
        ends = {"is killed": kill, "is replaced": worker.restart, "leaves": worker.leave, "fails with last words": fail}
        self._do(ends.get(how, worker.die))

    def _runs(self, name: str) -> bool:
        return self.workers[name].status.state is WorkerState.READY

    @rule(name=worker_names)
    def migrate(self, name: str) -> None:
        self._do(lambda: self.router.migrate(name))

    @rule(name=worker_names)
    def come_back(self, name: str) -> None:
        if not self._runs(name):
            self._do(self._worker(name).come_back)

    @rule(call=calls)
    def take(self, call: Call) -> None:
        for piece in self._do(lambda: call.take(with_tokens=False)):
            stream = call.streams[piece.index]
            self.texts[stream] += piece.text
            self.reasons[stream] += piece.reason is not None

    @rule(call=calls, really=st.sampled_from([False, False, False, True]))
    def client_leaves(self, call: Call, really: bool) -> None:
        if really:
            self.let_go.add(call)
            self._do(call.cancel_nowait)

    @rule(seconds=st.sampled_from([0.01, 0.3, 30.0]))
    def wait(self, seconds: float) -> None:
        self._do(lambda: None, seconds)

    @invariant()
    def a_live_sequence_is_in_one_place(self) -> None:
        live = self.router._placement.live()
        assert len(live) == len(set(live))
        assert set(live) == {stream for stream in self.expected if not stream.ended}
        for seat in self.router.seats():
            assert sum(suspect(stream) for stream in seat.live.values()) <= 1, "suspects run apart"

    @invariant()
    def what_was_delivered_is_the_beginning_of_the_answer(self) -> None:
        for stream, answer in self.expected.items():
            assert answer.tokens[: len(stream.tokens)] == tuple(stream.tokens)
            assert answer.text.startswith(self.texts[stream])

    def teardown(self) -> None:
        for name in WORKERS:
            if not self.router.roster[name].ready:
                self._do(self._worker(name).restart)
        for _ in range(2000):
            for name in WORKERS:
                self._do(self._worker(name).step)
            for call in {stream.call for stream in self.expected}:
                self.take(call)  # type: ignore[arg-type]
                if call.failure is not None:
                    self._do(call.cancel_nowait)  # as the endpoint does, which frees the rest of the request
            if all(stream.ended for stream in self.expected):
                break
            self._do(lambda: None, 0.3)
        self._check_ends()
        self.loop.close()

    def _check_ends(self) -> None:
        for stream, answer in self.expected.items():
            assert stream.ended
            failure = stream.failure
            if stream.usage is not None:
                assert answer_of(stream.call, stream.index, self.texts[stream]) == answer
                assert self.reasons[stream] == 1
                assert not stream.continued
            elif failure is not None:
                assert failure.code is ErrorCode.QUARANTINED
                assert self.deaths[stream] >= MAX_TRIES, "nobody is blamed for one death, or for a few from outside"
            else:
                assert stream.call in self.let_go or stream.call.failure is not None
        assert self.router.waiting() == {"tiny": 0}
        self.loop.run_until_complete(self.router.idle())


def test_streams_live_through_everything() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    run_state_machine_as_test(StreamLife, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))
