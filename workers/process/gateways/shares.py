"""The sequences that several gateways have on one worker: their numbers there, and which has the next turn. Pure.

A gateway numbers its sequences by itself, and sends a worker little more of them than it has slots. With several
gateways these are more than the worker should have, so the others wait here, and go to the worker in turns: first those
of the gateway that has the fewest sequences there. So gateways that always have something to do get equal shares of the
slots, whatever they send, and one that is alone gets all of them.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.commands import Submit, client_of
from protocol.errors import ErrorCode, ProtocolError
from protocol.events import Delta, Failed, Finished, Gauges, PromptLogprobs, StartedStream, Step
from protocol.scheduling import NORMAL, Urgency, ahead, may_preempt

MAX_WAITING = 1024
"""Sequences of one gateway that wait for a turn. A further one is refused."""


class NoTurn(Exception):
    """Raised when too many sequences of a gateway wait already."""


@dataclass(frozen=True, slots=True)
class OnWorker:
    """A sequence that the worker has."""

    gateway: int
    stream: int
    """The gateway's number for it."""
    urgency: Urgency
    client: str
    suspect: bool
    waited_s: float


@dataclass(frozen=True, slots=True)
class _WaitingSequence:
    submit: Submit
    urgency: Urgency
    arrived: float


@dataclass(slots=True)
class _Share:
    """The sequences of one gateway."""

    waiting: dict[int, _WaitingSequence] = field(default_factory=dict)
    """By the gateway's numbers, in the order in which they came."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Numbers on the worker, by the gateway's numbers."""
    unreached: dict[int, int] = field(default_factory=dict)
    """The gateway's numbers by those on the worker, as far as the worker may not have their prompts yet."""
    last: int = 0
    """The highest of the gateway's numbers so far."""


class Shares:
    """Owns the sequences of all gateways of a worker, from their `Submit` to their end.

    With one gateway every sequence has its turn at once, and the numbers are its own until it has left: a gateway that
    starts anew begins to count anew, and the worker goes on.
    """

    def __init__(self, gateways: int) -> None:
        self.slots = 1
        """Slots of the worker."""
        self.alone = gateways == 1
        """There is one gateway."""
        self._shares = [_Share() for _ in range(gateways)]
        self._on_worker: dict[int, OnWorker] = {}
        """By the numbers on the worker."""
        self._tried: set[int] = set()
        """Those of which the worker has generated something, while several gateways have joined."""
        self._renumbers = not self.alone
        """Numbers on the worker are others than those of the gateways."""
        self._numbers = itertools.count(1)
        self._reached = 0

    @property
    def _room(self) -> int:
        """Sequences that the worker has: for each slot, and for those that become free next. As a gateway has it that
        is alone."""
        return self.slots + ahead(self.slots)

    def live(self, gateway: int) -> bool:
        """The gateway has sequences here, or on the worker."""
        share = self._shares[gateway]
        return bool(share.numbers or share.waiting)

    def streams(self, gateway: int) -> list[int]:
        """The gateway's numbers of its sequences."""
        share = self._shares[gateway]
        return [*share.numbers, *share.waiting]

    def number(self, gateway: int, stream: int) -> int | None:
        """The number on the worker of a gateway's sequence; None if the worker does not have it."""
        return self._shares[gateway].numbers.get(stream)

    def add(self, gateway: int, submit: Submit, now: float) -> None:
        """Add a sequence, which waits for its turn. Raises `NoTurn`, and `ProtocolError` for one that is there."""
        share = self._shares[gateway]
        if submit.stream in share.numbers or submit.stream in share.waiting:
            raise ProtocolError(f"stream {submit.stream} was submitted twice")
        if len(share.waiting) >= MAX_WAITING:
            raise NoTurn(f"{MAX_WAITING} sequences of this gateway wait for the worker already")
        share.last = max(share.last, submit.stream)
        share.waiting[submit.stream] = _WaitingSequence(submit, submit.urgency, now)

    def take(self, now: float) -> Submit | None:
        """Take the sequence that has the next turn, as the worker gets it; None if none has one."""
        with_waiting = [number for number, share in enumerate(self._shares) if share.waiting]
        if not with_waiting:
            return None
        room = self.alone or len(self._on_worker) < self._room
        least = NORMAL if room else max(each.urgency for each in self._on_worker.values())
        for gateway in sorted(with_waiting, key=self._precedence):
            for waiting in self._shares[gateway].waiting.values():
                if (room or waiting.urgency < least) and self._may_go(gateway, waiting, room):
                    return self._place(gateway, waiting, now)
        return None

    def cancel(self, gateway: int, stream: int) -> int | None:
        """Return the number on the worker of a sequence that is to end. One that waits has ended then: 0. None for one
        that is not there."""
        share = self._shares[gateway]
        if share.waiting.pop(stream, None) is not None:
            return 0
        return share.numbers.get(stream)

    def end(self, number: int) -> OnWorker | None:
        """Remove a sequence that has ended on the worker."""
        ended = self._on_worker.pop(number, None)
        self._tried.discard(number)
        if ended is not None:
            share = self._shares[ended.gateway]
            del share.numbers[ended.stream]
            share.unreached.pop(number, None)
        return ended

    def leave(self, gateway: int) -> list[int]:
        """Drop what waits of a gateway that has left. Returns the numbers of what the worker still has of it."""
        share = self._shares[gateway]
        share.waiting.clear()
        if share.last and not self._renumbers:
            self._renumbers, self._numbers = True, itertools.count(share.last + 1)
        share.last = 0
        return list(share.numbers.values())

    def clear(self) -> dict[int, list[int]]:
        """Forget all, as the worker is gone. Returns the sequences of each gateway that had not gone to it."""
        waiting = {number: list(share.waiting) for number, share in enumerate(self._shares)}
        self._shares = [_Share() for _ in self._shares]
        self._on_worker.clear()
        self._tried.clear()
        self._reached, self._renumbers = 0, not self.alone
        return waiting

    def late(self, now: float) -> Iterator[tuple[int, Failed]]:
        """Remove what has waited for too long, by its own limits, and generate its end."""
        for gateway, share in enumerate(self._shares):
            for stream, waiting in list(share.waiting.items()):
                limits, waited_ms = waiting.submit.limits, (now - waiting.arrived) * 1000
                if limits.deadline_ms and waited_ms >= limits.deadline_ms:
                    end = Failed(stream, ErrorCode.DEADLINE, "the deadline passed before the worker had room")
                elif limits.queue_ms and waited_ms >= limits.queue_ms:
                    end = Failed(stream, ErrorCode.QUEUE_TIMEOUT, "the worker had no room for as long as it may wait")
                else:
                    continue
                del share.waiting[stream]
                yield gateway, end

    def suspected(self) -> frozenset[int]:
        """The gateways with a suspect on the worker, to which its death is attributed."""
        return frozenset(each.gateway for each in self._on_worker.values() if each.suspect)

    def untried(self) -> frozenset[int]:
        """The gateways with a sequence on the worker that has no token of it yet, and may be the cause of its death,
        too."""
        return frozenset(each.gateway for number, each in self._on_worker.items() if number not in self._tried)

    # What the worker sends, as each gateway gets it.

    def note(self, gauges: Gauges) -> None:
        """Note what the worker has reached."""
        if gauges.reached > self._reached:
            self._reached = gauges.reached
            for share in self._shares:
                while share.unreached and (first := next(iter(share.unreached))) <= self._reached:
                    del share.unreached[first]

    def gauges(self, gateway: int, gauges: Gauges) -> Gauges:
        """The worker's gauges for a gateway, whose numbers and sequences they are about."""
        if not self._renumbers:
            return gauges
        share = self._shares[gateway]
        reached = min((*share.unreached.values(), *share.waiting), default=share.last + 1) - 1
        others = len(self._on_worker) - len(share.numbers)
        others += sum(len(each.waiting) for each in self._shares) - len(share.waiting)
        return replace(gauges, reached=max(0, reached), others=others)

    def split(self, step: Step) -> Iterator[tuple[int, Step]]:
        """Generate what each gateway gets of a step: the output of its own sequences."""
        if not self._renumbers:
            yield 0, step
            return
        deltas: dict[int, list[Delta]] = {}
        started: dict[int, list[StartedStream]] = {}
        for delta in step.deltas:
            if (whose := self._on_worker.get(delta.stream)) is not None:
                self._tried.add(delta.stream)
                deltas.setdefault(whose.gateway, []).append(replace(delta, stream=whose.stream))
        for start in step.started:
            if (whose := self._on_worker.get(start.stream)) is not None:
                queue_us = start.queue_us + round(whose.waited_s * 1e6)
                report = replace(start, stream=whose.stream, queue_us=queue_us)
                started.setdefault(whose.gateway, []).append(report)
        for gateway in deltas | started:
            own, starts = tuple(deltas.get(gateway, ())), tuple(started.get(gateway, ()))
            yield gateway, Step(own, self.gauges(gateway, step.gauges), starts)

    def prompt(self, event: PromptLogprobs) -> tuple[int, PromptLogprobs] | None:
        """Return whose log-probabilities these are; None for those of an unknown sequence."""
        whose = self._on_worker.get(event.stream)
        return None if whose is None else (whose.gateway, replace(event, stream=whose.stream))

    def ended(self, event: Finished | Failed) -> tuple[int, Finished | Failed] | None:
        """Remove a sequence that has ended, and return whose end it is; None for an unknown one."""
        whose = self.end(event.stream)
        if whose is None:
            return None
        if isinstance(event, Failed):
            return whose.gateway, replace(event, stream=whose.stream)
        usage = event.usage
        if waited_ms := round(whose.waited_s * 1000):
            usage = replace(usage, queue_ms=usage.queue_ms + waited_ms)
        return whose.gateway, replace(event, stream=whose.stream, usage=usage)

    # Turns.

    def _precedence(self, gateway: int) -> tuple[int, float]:
        share = self._shares[gateway]
        return len(share.numbers), next(iter(share.waiting.values())).arrived

    def _may_go(self, gateway: int, waiting: _WaitingSequence, room: bool) -> bool:
        """A suspect does not run beside that of another gateway: the death of both would be attributed to both."""
        if waiting.submit.suspect and self.suspected() - {gateway}:
            return False
        if room:
            return True
        client = _client(gateway, waiting.submit)
        lower = sum(
            may_preempt(waiting.urgency, each.urgency, same_client=client == each.client)
            for each in self._on_worker.values()
        )
        return lower > 0 and len(self._on_worker) - lower < self.slots

    def _place(self, gateway: int, waiting: _WaitingSequence, now: float) -> Submit:
        submit, share = waiting.submit, self._shares[gateway]
        number = next(self._numbers) if self._renumbers else submit.stream
        waited_s = 0.0 if self.alone else now - waiting.arrived
        del share.waiting[submit.stream]
        share.numbers[submit.stream] = number
        client = _client(gateway, submit)
        self._on_worker[number] = OnWorker(gateway, submit.stream, waiting.urgency, client, submit.suspect, waited_s)
        if not self._renumbers:
            return submit
        share.unreached[number] = submit.stream
        limits, waited_ms = submit.limits, math.floor(waited_s * 1000)
        if waited_ms and (limits.deadline_ms or limits.queue_ms):
            deadline_ms = max(1, limits.deadline_ms - waited_ms) if limits.deadline_ms else 0
            queue_ms = max(1, limits.queue_ms - waited_ms) if limits.queue_ms else 0
            limits = replace(limits, deadline_ms=deadline_ms, queue_ms=queue_ms)
        return replace(submit, stream=number, limits=limits)


def _client(gateway: int, submit: Submit) -> str:
    return f"{gateway}/{client_of(submit.tenant)}"
