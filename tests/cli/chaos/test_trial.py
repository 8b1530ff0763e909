"""`baton chaos` against a real server with scripted workers, and everything before it that must be refused."""

import io
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from bench.served import served
from cli.administration import Administration
from cli.chaos import trial
from cli.chaos.asking import Server
from cli.chaos.command import chosen, run_chaos, run_own
from cli.chaos.faults import WITHIN
from cli.chaos.heard import Choice, Heard
from cli.chaos.rounds import Noticed
from cli.chaos.trial import MOST_FAULTS, READY_S, Trial, requests, show
from cli.chaos.watched import Watched
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
        found.watched.wait_until_ready(READY_S)  # a restart is counted when it happens, which the last may yet
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


def watched(*workers: dict[str, Any], states: Iterable[str] = ()) -> Watched:
    """Workers as they are told; `states` are all of theirs at the first looks, and then they are ready."""
    base = {"role": "active", "slots_active": 0, "queue_depth": 0, "model": "m", "address": None, "reason": ""}
    state = itertools.chain(states, itertools.repeat("ready"))

    def answer(_: httpx.Request) -> httpx.Response:
        now = {"state": next(state)}
        return httpx.Response(200, json={"workers": [base | now | worker for worker in workers]})

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")
    return Watched(Administration(client), sleep=lambda _: None)


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
    def hit(pid: int, number: int) -> None:
        raise ProcessLookupError(pid)

    playing([whole(5)])
    found = watched({"name": "a", "pid": 11})
    one = Trial(Server("127.0.0.1", 1), found, requests("m", 1, 5), seed=1, hit=hit)
    assert "every worker was struck" in one.run(["abort"], 60.0)


def test_no_worker_is_struck_more_often_than_its_server_bears(playing: Callable[[list[Heard]], None]) -> None:
    playing([whole(5)])
    hits: list[tuple[int, int]] = []
    found = watched({"name": "a", "pid": 11}, {"name": "b", "pid": 12}, {"name": "c", "pid": 13, "role": "standby"})
    one = Trial(
        Server("127.0.0.1", 1), found, requests("m", 1, 5), seed=1, hit=lambda pid, number: hits.append((pid, number))
    )
    assert "every worker was struck" in one.run(["abort"], 60.0)
    assert sorted(pid for pid, _ in hits) == [11] * MOST_FAULTS + [12] * MOST_FAULTS
    assert one.rounds == {"abort": 2 * MOST_FAULTS}


def test_a_worker_whose_end_is_noticed_late_is_waited_for(playing: Callable[[list[Heard]], None]) -> None:
    playing([whole(5)])
    found = watched({"name": "a", "pid": 11}, states=["backoff", "loading"])
    one = Trial(Server("127.0.0.1", 1), found, requests("m", 1, 5), seed=1, hit=lambda pid, number: None)
    one.run(["abort"], 60.0)
    assert one.rounds == {"abort": MOST_FAULTS}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells who sent a signal, and each one counts")
def test_what_does_not_count_against_a_worker_is_done_until_the_time_is_over(
    playing: Callable[[list[Heard]], None],
) -> None:
    playing([whole(5)])
    hits: list[int] = []
    one = Trial(
        Server("127.0.0.1", 1),
        watched({"name": "a", "pid": 11}),
        requests("m", 1, 5),
        seed=1,
        hit=lambda pid, number: hits.append(number),
        clock=itertools.count().__next__,
    )
    assert one.run(["kill", "abort", "stop"], 20) == "the time is over"
    assert one.rounds["abort"] == MOST_FAULTS
    assert min(one.rounds["kill"], one.rounds["stop"]) > MOST_FAULTS
    assert len(set(hits[:3])) == 3, "few rounds have each fault"


def test_a_server_that_fails_undisturbed_is_left_alone(playing: Callable[[list[Heard]], None]) -> None:
    playing([Heard(errors=[("model_not_found", "there is none")], ends=1)])
    one = Trial(Server("127.0.0.1", 1), watched(), requests("m", 1, 5), seed=1)
    with pytest.raises(CommandFailed, match="model_not_found: there is none"):
        one.run(["kill"], 60.0)


def test_the_table_has_a_line_a_fault_and_says_what_failed() -> None:
    one = Trial(Server("127.0.0.1", 1), watched(), [], seed=1)
    one.rounds = {"kill": 2, "stop": 1}
    one.noticed = {"kill": Noticed(16, 0, 0, 0, (0.25, 0.5), 0.02), "stop": Noticed(8, 1, 0, 0, (), 0.02, "lost [x]")}
    where = console()
    show(one, where)
    _, kill, stop, problem = printed(where).splitlines()
    assert kill.split() == ["kill", "2", "16", "0", "0", "0", "2", "500", "500", "20"]
    assert stop.split() == ["stop", "1", "8", "1", "0", "0", "0", "-", "-", "20"]
    assert problem == "stop: lost [x]"


def test_the_table_fits_into_eighty_columns_uncut() -> None:
    one = Trial(Server("127.0.0.1", 1), watched(), [], seed=1)
    one.noticed = dict.fromkeys(WITHIN, Noticed(100, 10, 10, 10, (10.0,) * 100, 0.5))
    one.rounds = dict.fromkeys(WITHIN, 10)
    narrow = Console(file=io.StringIO(), width=80)
    show(one, narrow)
    text = printed(narrow)
    assert "\u2026" not in text
    assert all(name in text for name in (*WITHIN, "streams", "altered"))
