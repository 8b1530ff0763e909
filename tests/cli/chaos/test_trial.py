"""Trials: the worker that gets a fault, the number of faults, and the waits."""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from cli.chaos import trial
from cli.chaos.http_client import ServerAddress
from cli.chaos.transcript import ChoiceTranscript, Transcript
from cli.chaos.trial import MAX_COUNTED_FAULTS, Trial
from cli.chaos.workers_watcher import WorkersWatcher
from cli.chaos.workload import streaming_requests
from cli.client.administration import Administration
from cli.config.errors import CommandFailed


class Workers:
    """The workers of a server that restarts each one that gets a signal.

    The server lists a dead worker as ready in `late` further polls. Each poll takes a second. In the first polls all
    workers have the state in `states`.
    """

    def __init__(self, *workers: dict[str, Any], states: Sequence[str] = (), late: int = 0) -> None:
        base = {"model": "m", "role": "active", "address": None, "slots_active": 0, "queue_depth": 0, "reason": ""}
        self._listed: list[dict[str, Any]] = [base | {"restarts": 0} | worker for worker in workers]
        self._states = itertools.chain(states, itertools.repeat("ready"))
        self._late = late
        self._ends: dict[int, int] = {}
        """By process id of a dead worker, in how many further polls it is listed."""
        self.now = 0.0
        self.signals: list[tuple[str, int]] = []
        """Worker and signal number."""
        client = httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://server")
        self.watcher = WorkersWatcher(Administration(client), clock=self.clock, sleep=lambda _: None)

    def clock(self) -> float:
        return self.now

    def send_signal(self, pid: int, number: int) -> None:
        if pid in self._ends:
            raise ProcessLookupError(pid)
        (name,) = [each["name"] for each in self._listed if each["pid"] == pid]
        self.signals.append((name, number))
        self._ends[pid] = self._late

    def _answer(self, _: httpx.Request) -> httpx.Response:
        self.now += 1.0
        state = next(self._states)
        return httpx.Response(200, json={"workers": [{"state": state} | self._poll(each) for each in self._listed]})

    def _poll(self, worker: dict[str, Any]) -> dict[str, Any]:
        left = self._ends.get(worker["pid"])
        if left is None:
            return worker
        if left:
            self._ends[worker["pid"]] -= 1
            return worker
        worker.update(pid=worker["pid"] + 100, restarts=worker["restarts"] + 1)
        return worker | {"state": "backoff", "pid": None}


def make_trial(server: Workers, **changes: Any) -> Trial:
    requests = streaming_requests("m", 1, 5)
    options: dict[str, Any] = {"send_signal": server.send_signal, "seed": 1, **changes}
    return Trial(ServerAddress("127.0.0.1", 1), server.watcher, requests, **options)


def whole(tokens: int) -> Transcript:
    return Transcript(
        200, {0: ChoiceTranscript("a", [1] * tokens, ["length"])}, {"id"}, [(1, tokens)], ends=1, stamps=[0.0]
    )


SetStreams = Callable[[list[Transcript]], None]


@pytest.fixture
def play_streams(monkeypatch: pytest.MonkeyPatch) -> SetStreams:
    """Set the transcripts of every round, without a server."""

    def set_streams(streams: list[Transcript]) -> None:
        async def answer(address: object, requests: object, trigger: Any = None) -> tuple[list[Transcript], float]:
            if trigger is not None:
                assert 0 <= trigger.tokens < streams[0].tokens
                trigger.inject()
            return streams, 0.5

        monkeypatch.setattr(trial, "run_round", answer)

    return set_streams


def test_a_worker_may_end_before_it_gets_its_signal(play_streams: SetStreams) -> None:
    server = Workers({"name": "a", "pid": 11})

    def send_signal(pid: int, number: int) -> None:
        server.send_signal(pid, number)  # the worker ends by itself
        server.send_signal(pid, number)

    play_streams([whole(5)])
    one = make_trial(server, send_signal=send_signal)
    assert f"every worker got {MAX_COUNTED_FAULTS} faults" in one.run(["abort"], 60.0)
    assert one.rounds == {"abort": MAX_COUNTED_FAULTS}


def test_no_worker_gets_so_many_faults_that_it_is_given_up(play_streams: SetStreams) -> None:
    play_streams([whole(5)])
    server = Workers({"name": "a", "pid": 11}, {"name": "b", "pid": 12}, {"name": "c", "pid": 13, "role": "standby"})
    one = make_trial(server)
    assert f"every worker got {MAX_COUNTED_FAULTS} faults" in one.run(["abort"], 60.0)
    assert sorted(name for name, _ in server.signals) == ["a"] * MAX_COUNTED_FAULTS + ["b"] * MAX_COUNTED_FAULTS
    assert one.rounds == {"abort": 2 * MAX_COUNTED_FAULTS}


@pytest.mark.parametrize("late", [0, 1, 7])
def test_a_round_waits_until_the_server_notices_the_end_of_the_worker(play_streams: SetStreams, late: int) -> None:
    """Its streams may have ended while it is still listed as ready and idle."""
    play_streams([whole(5)])
    server = Workers({"name": "a", "pid": 11}, late=late)
    one = make_trial(server)
    one.run(["abort"], 60.0)
    (worker,) = server.watcher.workers()
    assert worker["restarts"] == one.rounds["abort"] == len(server.signals) == MAX_COUNTED_FAULTS


def test_an_end_that_is_never_noticed_fails_the_trial(play_streams: SetStreams) -> None:
    play_streams([whole(5)])
    server = Workers({"name": "a", "pid": 11}, late=1000)
    one = make_trial(server)
    with pytest.raises(CommandFailed, match="did not notice the end of process 11 within 300 s"):
        one.run(["abort"], 60.0)


def test_a_worker_that_is_lost_between_two_rounds_is_awaited(play_streams: SetStreams) -> None:
    play_streams([whole(5)])
    server = Workers({"name": "a", "pid": 11}, states=["backoff", "loading"])
    one = make_trial(server)
    one.run(["abort"], 60.0)
    assert one.rounds == {"abort": MAX_COUNTED_FAULTS}


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not report the sender of a signal, so that each one counts"
)
def test_faults_that_do_not_count_are_repeated_until_the_time_is_over(
    play_streams: SetStreams,
) -> None:
    play_streams([whole(5)])
    server = Workers({"name": "a", "pid": 11})
    one = make_trial(server, clock=server.clock)
    assert one.run(["kill", "abort", "stop"], 60.0) == "the time is over"
    assert one.rounds["abort"] == MAX_COUNTED_FAULTS
    assert min(one.rounds["kill"], one.rounds["stop"]) > MAX_COUNTED_FAULTS
    assert len({number for _, number in server.signals[:3]}) == 3, "the first rounds have different faults"


def test_a_server_that_fails_undisturbed_gets_no_fault(play_streams: SetStreams) -> None:
    play_streams([Transcript(errors=[("model_not_found", "there is none")], ends=1)])
    one = make_trial(Workers())
    with pytest.raises(CommandFailed, match="model_not_found: there is none"):
        one.run(["kill"], 60.0)
