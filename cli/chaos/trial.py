"""Streams from a running server, faults on its workers, and a table of what the clients of the streams noticed."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.chaos.asking import Request, Server
from cli.chaos.faults import LOADS, OUTSIDE, within
from cli.chaos.heard import Heard
from cli.chaos.rounds import Noticed, Strike, compare, percentile, play
from cli.chaos.watched import Watched
from cli.config.errors import CommandFailed
from workers.faults.plan import Fault

MOST_FAULTS = 3
"""For one worker, of those that count: a server gives up a worker that fails five times within five minutes."""
COUNTED = frozenset({"abort"}) if sys.platform == "linux" else frozenset(OUTSIDE)
"""The faults from outside that count against a worker. What Linux says to have come from somebody else does not; an
abort might as well be the worker's own, and other systems do not say."""
READY_S = 300.0
"""In which all workers must be back."""
SUBJECTS = ("river", "clock", "market", "garden", "letter", "engine", "island", "winter", "bridge", "teacher")

Hit = Callable[[int, int], None]
Tell = Callable[[str, Fault], None]


def requests(model: str, count: int, tokens: int, *, words: int = 8, chat: bool = False) -> list[Request]:
    """Streaming requests, no two alike, each for `tokens` tokens; half greedy, half drawn with a seed. With `chat`,
    every second one is a chat."""
    found = []
    for index in range(count):
        prompt = " ".join(SUBJECTS[(index * 7 + word * (index % 9 + 1)) % len(SUBJECTS)] for word in range(words))
        body: dict[str, Any] = {"model": model, "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"temperature": 0.0} if index // 2 % 2 else {"temperature": 0.9, "seed": index}
        prompt = f"{index}: {prompt}"
        if chat and index % 2:
            body["messages"] = [{"role": "user", "content": prompt}]
            found.append(Request("/v1/chat/completions", body))
        else:
            found.append(Request("/v1/completions", body | {"prompt": prompt}))
    return found


class Trial:
    """Rounds against one server, each with one fault on a worker that serves. Owns what they brought."""

    def __init__(
        self,
        server: Server,
        watched: Watched,
        asked: Sequence[Request],
        *,
        seed: int,
        hit: Hit = os.kill,
        tell: Tell | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hit(pid, signal)` carries a fault from outside out. `tell(worker, fault)` gives a worker's next life one
        from within; it is there for a server of one's own, which gives no worker up."""
        self._server = server
        self._watched = watched
        self._asked = asked
        self._draw = random.Random(seed)
        self._hit = hit
        self._tell = tell
        self._counted = COUNTED if tell is None else frozenset[str]()
        self._clock = clock
        self._struck: Counter[str] = Counter()
        """How often each worker was, with what counts against it."""
        self.noticed: dict[str, Noticed] = {}
        """By the fault, of all its rounds."""
        self.rounds: dict[str, int] = {}

    def run(self, faults: Sequence[str], seconds: float) -> str:
        """Rounds until the time is over, or nothing may be done to any worker again. Returns why it ended.

        Raises `CommandFailed` when the server does not answer undisturbed, or its workers do not come back.
        """
        whole = self._undisturbed()
        order = deque(self._draw.sample(list(faults), len(faults)))  # so that few rounds have each of them
        until = self._clock() + seconds
        while self._clock() < until:
            if not order:
                return f"every worker was struck {MOST_FAULTS} times: more, and the server might give one up"
            fault = order.popleft()
            victim = self._victim(fault)
            if victim is None:
                continue
            order.append(fault)
            self._round(fault, victim, whole)
            self._watched.wait_until_ready(READY_S)
        return "the time is over"

    def _undisturbed(self) -> list[Heard]:
        whole, _ = asyncio.run(play(self._server, self._asked))
        for request, heard in zip(self._asked, whole, strict=True):
            if problem := ": ".join(heard.errors[0]) if heard.errors else heard.breach(request.choices):
                raise CommandFailed(f"without any fault, {request.path} ended so: {problem}")
        return whole

    def _victim(self, fault: str) -> dict[str, Any] | None:
        """A worker that serves and may have this done to it, which counts as done from now on. None when there is none,
        and will be none."""
        counts = fault in self._counted
        active = self._watched.active()
        if not active:  # a fault of a link may come between two rounds: an idle worker's beats are messages, too
            self._watched.wait_until_ready(READY_S)
            active = self._watched.active()
        there = [each for each in active if not counts or self._struck[each["name"]] < MOST_FAULTS]
        if not there:
            return None
        victim = self._draw.choice(there)
        self._struck[victim["name"]] += counts
        return victim

    def _round(self, fault: str, victim: dict[str, Any], whole: Sequence[Heard]) -> None:
        tokens = max(heard.tokens for heard in whole)
        strike = self._prepared(fault, victim, tokens)
        streams, at = asyncio.run(play(self._server, self._asked, strike))
        if strike is not None:  # its streams may be over before its server knows that it is gone
            self._watched.wait_until_gone(victim["pid"], READY_S)
        self.noticed[fault] = self.noticed.get(fault, Noticed()) + compare(self._asked, streams, at, whole)
        self.rounds[fault] = self.rounds.get(fault, 0) + 1

    def _prepared(self, fault: str, victim: dict[str, Any], tokens: int) -> Strike | None:
        """What is to be done at a drawn moment; None where the worker does it by itself when its time comes."""
        number = OUTSIDE.get(fault)
        if number is None:
            assert self._tell is not None, "whoever cannot tell is not asked for faults from within"
            # In the first half of what a stream gets, so that a worker that shares the streams comes that far.
            planned = within(fault, self._draw, tokens // 2)
            if fault not in LOADS:
                self._begin(planned, victim["name"])
                return None
            self._tell(victim["name"], planned)
            number = signal.SIGKILL  # what is not to load must be gone first
        return Strike(self._draw.randrange(tokens), functools.partial(self._strike, int(victim["pid"]), number))

    def _begin(self, fault: Fault, victim: str) -> None:
        """Let a life begin that is to have this fault, and serve. Who stands by takes the place of one that restarts:
        so it is told where there is one, and the victim then leaves its place to it."""
        assert self._tell is not None
        standby = self._watched.standby()
        told = standby[0]["name"] if standby else victim
        self._tell(told, fault)
        for name in dict.fromkeys((told, victim)):
            self._watched.restart(name)
            self._watched.wait_until_ready(READY_S)

    def _strike(self, pid: int, number: int) -> None:
        # One that ended by itself before its moment is struck as well.
        with contextlib.suppress(ProcessLookupError):
            self._hit(pid, number)


def show(trial: Trial, console: Console) -> None:
    """Print one line a fault, and of the first stream that failed why."""
    # 80 columns have room for these, with heads of several lines.
    columns = ("fault", "rounds", "streams", "failed", "twice", "altered", "cut", "gap p50 ms", "gap p99 ms")
    table = Table(*columns, "calm ms", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[0].min_width = max(map(len, trial.noticed), default=0)
    for fault, noticed in trial.noticed.items():
        counts = trial.rounds[fault], noticed.streams, noticed.failed, noticed.duplicated, noticed.altered
        gaps = (percentile(noticed.gaps_s, 0.5), percentile(noticed.gaps_s, 0.99), noticed.undisturbed_s)
        shown = ["-" if gap is None else f"{1e3 * gap:.0f}" for gap in gaps]
        table.add_row(fault, *map(str, counts), str(len(noticed.gaps_s)), *shown)
    console.print(table)
    for fault, noticed in trial.noticed.items():
        if noticed.problem:
            console.print(f"{fault}: {noticed.problem}", markup=False)
