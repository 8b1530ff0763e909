"""Attempts of a request, in any order of events: the real router over workers that die as scripted.

Three kinds of request: one that harms nobody, one whose every run kills its worker from within, and one for whose every
run somebody kills the worker from outside. A run is tried for a request when it was among the first `SLOTS` of its
worker, and the death was attributed to no other; three tokens make it forgotten.
"""

import asyncio
import functools
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from actors.process.exit_cause import Origin
from gateway.openai.decoding import RequestDecoder
from gateway.routing.failure_attribution import CLEARED_AFTER, MAX_TRIES
from gateway.routing.router import Router
from gateway.routing.sequence import LiveSequence
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import VirtualLoop

SLOTS = 2
LENGTH = 3 * CLEARED_AFTER


class Kind(Enum):
    HARMLESS = auto()
    DEADLY = auto()
    HUNTED = auto()


class Trials(RuleBasedStateMachine):
    """Two workers, and requests of some kinds. `kinds` and `kills` are what there may be in this world."""

    kinds: tuple[Kind, ...] = tuple(Kind)
    kills = True

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.kind: dict[LiveSequence, Kind] = {}
        self.tries: dict[LiveSequence, list[Origin]] = {}
        """Deaths in a row at which it ran."""
        self.present: dict[LiveSequence, int] = {}
        """Deaths in a row at which it may have run, for all that the gateway can know."""
        self._do(self._begin)

    def _begin(self) -> None:
        chosen = GatewaySettings(worker_wait_s=1e4, max_waiting_streams=1000)
        self.decoder = RequestDecoder(chosen)
        self.router = Router(chosen)
        self.workers = {name: FakeWorker(name, slots=SLOTS).join(self.router) for name in ("a", "b")}

    def _do(self, act: Callable[[], Any]) -> Any:
        async def run() -> Any:
            done = act()
            await asyncio.sleep(1.0)
            return done

        return self.loop.run_until_complete(run())

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(self.choices()))  # first: a draw may end the example
        body = {"model": "tiny", "prompt": f"{len(self.kind)}", "max_tokens": LENGTH, "stream": True}
        group = self._do(
            lambda: self.router.admission.open(self.decoder.completion(json.dumps(body).encode()).request, "r")
        )
        self.kind[group.sequences[0]] = kind

    def choices(self) -> Sequence[Kind]:
        """Kinds of requests that may come next."""
        return self.kinds

    @rule(name=st.sampled_from("ab"))
    def run(self, name: str) -> None:
        """It computes what it has: one token for each slot, or its end."""
        running = list(itertools.islice(self.router.pool[name].live.values(), SLOTS))
        kinds = {self.kind[sequence] for sequence in running}
        if Kind.DEADLY in kinds:
            self._end(name, Origin.WITHIN)
        elif Kind.HUNTED in kinds:
            self._end(name, Origin.OUTSIDE)
        else:
            for sequence in running:
                self._do(functools.partial(self._token, name, sequence))

    def _token(self, name: str, sequence: LiveSequence) -> None:
        self.workers[name].token(sequence.submit.stream, "x", len(sequence.tokens))
        if sequence.since_replay >= CLEARED_AFTER:
            self.tries[sequence], self.present[sequence] = [], 0
        if len(sequence.tokens) == LENGTH:
            self.workers[name].finish(sequence.submit.stream)

    @precondition(lambda self: self.kills)
    @rule(name=st.sampled_from("ab"))
    def kill(self, name: str) -> None:
        self._end(name, Origin.OUTSIDE)

    def _end(self, name: str, origin: Origin) -> None:
        live = list(self.router.pool[name].live.values())

        def die() -> None:
            self.workers[name].die(origin=origin)
            self.workers[name].come_back()

        self._do(die)
        attributed = [sequence for sequence in live if sequence.ended]
        assert len(attributed) <= 1
        for index, sequence in enumerate(live):
            if attributed and sequence not in attributed:
                continue
            if index < 2 * SLOTS:
                self.present[sequence] = self.present.get(sequence, 0) + 1
            if index < SLOTS:
                self.tries[sequence] = [*self.tries.get(sequence, []), origin]
                assert len(self.tries[sequence]) <= MAX_TRIES
                assert len(self.tries[sequence]) < MAX_TRIES or sequence.ended

    def teardown(self) -> None:
        try:
            self._end_all()
        finally:
            self.loop.close()

    def _end_all(self) -> None:
        for _ in range(100 * len(self.kind)):
            if all(sequence.ended for sequence in self.kind):
                break
            self.run("a")
            self.run("b")
        for sequence, kind in self.kind.items():
            assert sequence.ended, "nothing is tried without end"
            if sequence.failure is not None:
                assert sequence.failure.code is ErrorCode.QUARANTINED
            self.check(sequence, kind)
        self.loop.run_until_complete(self.router.idle())

    def check(self, sequence: LiveSequence, kind: Kind) -> None:
        """The outcome of a request in this world."""
        assert kind is Kind.HARMLESS or sequence.failure is not None
        assert self.tries.get(sequence, []).count(Origin.WITHIN) <= 2


class Crashes(Trials):
    """Nobody kills from outside, and of those that kill from within there is one at a time: who merely queued behind
    another one has used up a try without having run."""

    kills = False

    def choices(self) -> Sequence[Kind]:
        deadly = any(kind is Kind.DEADLY and not sequence.ended for sequence, kind in self.kind.items())
        return [Kind.HARMLESS] if deadly else [Kind.HARMLESS, Kind.DEADLY]

    def check(self, sequence: LiveSequence, kind: Kind) -> None:
        super().check(sequence, kind)
        if kind is Kind.DEADLY:
            assert self.tries[sequence] == [Origin.WITHIN] * 2


class Kills(Trials):
    """Only somebody outside kills, and not because of anybody."""

    kinds = (Kind.HARMLESS,)

    def check(self, sequence: LiveSequence, kind: Kind) -> None:
        assert sequence.failure is None or self.present[sequence] == MAX_TRIES


class Hunts(Trials):
    """Somebody outside kills because of one request, and of nothing else."""

    kills = False

    def choices(self) -> Sequence[Kind]:
        return [Kind.HARMLESS] if Kind.HUNTED in self.kind.values() else [Kind.HARMLESS, Kind.HUNTED]

    def check(self, sequence: LiveSequence, kind: Kind) -> None:
        assert (sequence.failure is None) == (kind is Kind.HARMLESS), "their last try shows which one it is"


def play(world: type[Trials]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    run_state_machine_as_test(world, settings=settings(max_examples=40, stateful_step_count=30, deadline=None))


def test_nothing_is_tried_more_often_than_the_bound() -> None:
    play(Trials)


def test_what_kills_from_within_is_tried_twice() -> None:
    play(Crashes)


def test_a_request_that_kills_nothing_lives_through_any_kills_below_the_bound() -> None:
    play(Kills)


def test_a_poison_request_is_quarantined_at_the_bound() -> None:
    play(Hunts)
