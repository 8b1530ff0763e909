"""`baton chaos` against a real server with scripted workers, and everything before it that must be refused."""

import io
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from bench.harness.served import served
from cli.chaos import trial
from cli.chaos.asking import Server
from cli.chaos.command import chosen, run_chaos, run_own
from cli.chaos.faults import WITHIN
from cli.chaos.heard import Choice, Heard
from cli.chaos.rounds import Noticed
from cli.chaos.trial import MOST_FAULTS, Trial, requests, show
from cli.chaos.watched import Watched
from cli.client.administration import Administration
from cli.options import CommandFailed
from cli.settings import Settings


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(where: Console) -> str:
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_no_two_requests_are_alike() -> None:
    asked = requests("m", 64, 10, chat=True)
    assert len({str(request) for request in asked}) == 64
    assert {request.path for request in asked} == {"/v1/completions", "/v1/chat/completions"}
    assert {request.body["temperature"] for request in asked} == {0.0, 0.9}
    assert {request.path for request in requests("m", 9, 10)} == {"/v1/completions"}


def test_a_server_is_broken_and_its_clients_notice_a_gap_at_most() -> None:
    where = console()
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return True

    with served({"backend": "scripted", "workers": 1, "standby": 1}) as found:
        url = f"http://127.0.0.1:{found.server.port}"
        clean = run_chaos(
            Settings(),
            url=url,
            faults="kill",
            streams=4,
            tokens=400,
            seconds=0.1,
            seed=3,
            model="",
            confirm=confirm,
            console=where,
        )
        workers = found.watched.workers()
    assert clean, printed(where)
    (line,) = [line for line in printed(where).splitlines() if line.split()[:1] == ["kill"]]
    rounds = int(line.split()[1])  # on a fast machine another one fits into the time
    assert sum(worker["restarts"] for worker in workers) == rounds >= 1
    assert line.split()[2:6] == [str(4 * rounds), "0", "0", "0"]
    (question,) = questions
    assert "w0 (process" in question
    assert "seed 3" in printed(where)


@pytest.mark.parametrize("standby", [0, 1])
def test_a_server_of_one_s_own_is_broken_from_within_and_ended(standby: int, tmp_path: Path) -> None:
    """Who is told to go wrong serves when it does, whoever stands by."""
    where = console()
    clean = run_own(
        Settings(backend="scripted", workers=1, standby=standby),
        faults="nan",
        streams=4,
        tokens=400,
        seconds=0.1,
        seed=3,
        log=tmp_path / "log",
        console=where,
    )
    assert clean, printed(where)
    (line,) = [line for line in printed(where).splitlines() if line.split()[:1] == ["nan"]]
    assert line.split()[1:6] == ["1", "4", "0", "0", "0"]
    log = (tmp_path / "log").read_text()
    assert "NotFiniteError" in log, "it was told so"
    assert '"event":"ended"' in log, "it has ended"
    assert ('"worker":"w1"' in log) is bool(standby)
    assert f"with 1 worker(s) and {standby} standby" in printed(where)


def test_a_server_of_one_s_own_that_cannot_be_is_refused(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"faults": "nan", "streams": 1, "tokens": 1, "seconds": 1.0, "seed": 1, "log": None}
    for settings, said in (
        (Settings(backend="scripted", workers=0), "--workers 0"),
        (Settings(model=str(tmp_path / "none")), "none"),
    ):
        with pytest.raises(CommandFailed, match=said):
            run_own(settings, console=console(), **asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "http://192.0.2.1:8000"}, "is another one"),
        ({"url": "nonsense"}, "--url: .* nonsense is another one"),
        ({"faults": "kill,burn"}, "there is no 'burn'"),
        ({"faults": ","}, "name some of kill"),
        ({"url": "http://127.0.0.1:1"}, "no server answers"),
    ],
)
def test_what_cannot_be_broken_is_refused(changes: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"url": "http://127.0.0.1:1", "faults": "kill"}
    asked |= {"streams": 1, "tokens": 1, "seconds": 1.0, "seed": 1}
    with pytest.raises(CommandFailed, match=said):
        run_chaos(Settings(), model="", confirm=lambda _: True, console=console(), **(asked | changes))


def test_faults_are_named() -> None:
    assert chosen(" kill, stop ") == ["kill", "stop"]


class Workers:
    """Of a server that replaces who is hit, and lists each as ready until it notices, which takes it `late` looks. Each
    look is a second. `states` are all of theirs at the first looks."""

    def __init__(self, *workers: dict[str, Any], states: Sequence[str] = (), late: int = 0) -> None:
        base = {"model": "m", "role": "active", "address": None, "slots_active": 0, "queue_depth": 0, "reason": ""}
        self._listed: list[dict[str, Any]] = [base | {"restarts": 0} | worker for worker in workers]
        self._states = itertools.chain(states, itertools.repeat("ready"))
        self._late = late
        self._ends: dict[int, int] = {}
        """Of each process that is gone, how many looks more it is listed."""
        self.now = 0.0
        self.hits: list[tuple[str, int]] = []
        """Worker and signal."""
        client = httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://server")
        self.watched = Watched(Administration(client), clock=self.clock, sleep=lambda _: None)

    def clock(self) -> float:
        return self.now

    def hit(self, pid: int, number: int) -> None:
        if pid in self._ends:
            raise ProcessLookupError(pid)
        (name,) = [each["name"] for each in self._listed if each["pid"] == pid]
        self.hits.append((name, number))
        self._ends[pid] = self._late

    def _answer(self, _: httpx.Request) -> httpx.Response:
        self.now += 1.0
        state = next(self._states)
        return httpx.Response(200, json={"workers": [{"state": state} | self._look(each) for each in self._listed]})

    def _look(self, worker: dict[str, Any]) -> dict[str, Any]:
        left = self._ends.get(worker["pid"])
        if left is None:
            return worker
        if left:
            self._ends[worker["pid"]] -= 1
            return worker
        worker.update(pid=worker["pid"] + 100, restarts=worker["restarts"] + 1)
        return worker | {"state": "backoff", "pid": None}


def whole(tokens: int) -> Heard:
    return Heard(200, {0: Choice("a", [1] * tokens, ["length"])}, {"id"}, [(1, tokens)], ends=1, stamps=[0.0])


@pytest.fixture
def playing(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Heard]], None]:
    """Rounds without a server: each stream hears this."""

    def play(streams: list[Heard]) -> None:
        async def answer(server: object, asked: object, strike: Any = None) -> tuple[list[Heard], float]:
            if strike is not None:
                assert 0 <= strike.tokens < streams[0].tokens
                strike.act()
            return streams, 0.5

        monkeypatch.setattr(trial, "play", answer)

    return play


def test_a_process_that_is_gone_before_its_moment_ends_no_trial(playing: Callable[[list[Heard]], None]) -> None:
    there = Workers({"name": "a", "pid": 11})

    def hit(pid: int, number: int) -> None:
        there.hit(pid, number)  # by itself
        there.hit(pid, number)

    playing([whole(5)])
    one = Trial(Server("127.0.0.1", 1), there.watched, requests("m", 1, 5), seed=1, hit=hit)
    assert "every worker was struck" in one.run(["abort"], 60.0)
    assert one.rounds == {"abort": MOST_FAULTS}


def test_no_worker_is_struck_more_often_than_its_server_bears(playing: Callable[[list[Heard]], None]) -> None:
    playing([whole(5)])
    there = Workers({"name": "a", "pid": 11}, {"name": "b", "pid": 12}, {"name": "c", "pid": 13, "role": "standby"})
    one = Trial(Server("127.0.0.1", 1), there.watched, requests("m", 1, 5), seed=1, hit=there.hit)
    assert "every worker was struck" in one.run(["abort"], 60.0)
    assert sorted(name for name, _ in there.hits) == ["a"] * MOST_FAULTS + ["b"] * MOST_FAULTS
    assert one.rounds == {"abort": 2 * MOST_FAULTS}


@pytest.mark.parametrize("late", [0, 1, 7])
def test_an_end_is_waited_for_however_late_it_is_noticed(playing: Callable[[list[Heard]], None], late: int) -> None:
    """Its streams may be over, and it is listed as ready and idle yet: no other fault, and no end of the trial."""
    playing([whole(5)])
    there = Workers({"name": "a", "pid": 11}, late=late)
    one = Trial(Server("127.0.0.1", 1), there.watched, requests("m", 1, 5), seed=1, hit=there.hit)
    one.run(["abort"], 60.0)
    (worker,) = there.watched.workers()
    assert worker["restarts"] == one.rounds["abort"] == len(there.hits) == MOST_FAULTS


def test_an_end_that_is_never_noticed_ends_the_trial(playing: Callable[[list[Heard]], None]) -> None:
    playing([whole(5)])
    there = Workers({"name": "a", "pid": 11}, late=1000)
    one = Trial(Server("127.0.0.1", 1), there.watched, requests("m", 1, 5), seed=1, hit=there.hit)
    with pytest.raises(CommandFailed, match="did not notice the end of process 11 within 300 s"):
        one.run(["abort"], 60.0)


def test_a_worker_that_is_lost_between_two_rounds_is_waited_for(playing: Callable[[list[Heard]], None]) -> None:
    playing([whole(5)])
    there = Workers({"name": "a", "pid": 11}, states=["backoff", "loading"])
    one = Trial(Server("127.0.0.1", 1), there.watched, requests("m", 1, 5), seed=1, hit=there.hit)
    one.run(["abort"], 60.0)
    assert one.rounds == {"abort": MOST_FAULTS}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells who sent a signal, and each one counts")
def test_what_does_not_count_against_a_worker_is_done_until_the_time_is_over(
    playing: Callable[[list[Heard]], None],
) -> None:
    playing([whole(5)])
    there = Workers({"name": "a", "pid": 11})
    one = Trial(Server("127.0.0.1", 1), there.watched, requests("m", 1, 5), seed=1, hit=there.hit, clock=there.clock)
    assert one.run(["kill", "abort", "stop"], 60.0) == "the time is over"
    assert one.rounds["abort"] == MOST_FAULTS
    assert min(one.rounds["kill"], one.rounds["stop"]) > MOST_FAULTS
    assert len({number for _, number in there.hits[:3]}) == 3, "few rounds have each fault"


def test_a_server_that_fails_undisturbed_is_left_alone(playing: Callable[[list[Heard]], None]) -> None:
    playing([Heard(errors=[("model_not_found", "there is none")], ends=1)])
    one = Trial(Server("127.0.0.1", 1), Workers().watched, requests("m", 1, 5), seed=1)
    with pytest.raises(CommandFailed, match="model_not_found: there is none"):
        one.run(["kill"], 60.0)


def test_the_table_has_a_line_a_fault_and_says_what_failed() -> None:
    one = Trial(Server("127.0.0.1", 1), Workers().watched, [], seed=1)
    one.rounds = {"kill": 2, "stop": 1}
    one.noticed = {"kill": Noticed(16, 0, 0, 0, (0.25, 0.5), 0.02), "stop": Noticed(8, 1, 0, 0, (), 0.02, "lost [x]")}
    where = console()
    show(one, where)
    _, kill, stop, problem = printed(where).splitlines()
    assert kill.split() == ["kill", "2", "16", "0", "0", "0", "2", "500", "500", "20"]
    assert stop.split() == ["stop", "1", "8", "1", "0", "0", "0", "-", "-", "20"]
    assert problem == "stop: lost [x]"


def test_the_table_fits_into_eighty_columns_uncut() -> None:
    one = Trial(Server("127.0.0.1", 1), Workers().watched, [], seed=1)
    one.noticed = dict.fromkeys(WITHIN, Noticed(100, 10, 10, 10, (10.0,) * 100, 0.5))
    one.rounds = dict.fromkeys(WITHIN, 10)
    narrow = Console(file=io.StringIO(), width=80)
    show(one, narrow)
    text = printed(narrow)
    assert "\u2026" not in text
    assert all(name in text for name in (*WITHIN, "streams", "altered"))
