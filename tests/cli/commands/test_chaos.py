"""`baton chaos` against real servers with scripted workers, and the mistakes that it refuses."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.harness.served import served
from cli.chaos.faults import PLANNED, SIGNALS
from cli.commands.chaos import choose_faults, run_chaos, run_own
from cli.config.errors import CommandFailed
from cli.config.settings import Settings


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(where: Console) -> str:
    assert isinstance(where.file, io.StringIO)
    return where.file.getvalue()


def test_a_server_is_broken_and_its_clients_notice_a_gap_at_most() -> None:
    output = console()
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
            console=output,
        )
        workers = found.watcher.workers()
    assert clean, printed(output)
    (line,) = [line for line in printed(output).splitlines() if line.split()[:1] == ["kill"]]
    rounds = int(line.split()[1])  # on a fast machine another one fits into the time
    assert sum(worker["restarts"] for worker in workers) == rounds >= 1
    assert line.split()[2:6] == [str(4 * rounds), "0", "0", "0"]
    (question,) = questions
    assert "w0 (process" in question
    assert "seed 3" in printed(output)


@pytest.mark.parametrize("standby", [0, 1])
def test_an_owned_server_is_broken_from_within_and_stopped(standby: int, tmp_path: Path) -> None:
    """The faulty worker is active when its fault occurs, also with a standby."""
    output = console()
    clean = run_own(
        Settings(backend="scripted", workers=1, standby=standby),
        faults="nan",
        streams=4,
        tokens=400,
        seconds=0.1,
        seed=3,
        log=tmp_path / "log",
        console=output,
    )
    assert clean, printed(output)
    (line,) = [line for line in printed(output).splitlines() if line.split()[:1] == ["nan"]]
    assert line.split()[1:6] == ["1", "4", "0", "0", "0"]
    log = (tmp_path / "log").read_text()
    assert "NotFiniteError" in log, "the fault was planned"
    assert '"event":"ended"' in log, "the server was stopped"
    assert ('"worker":"w1"' in log) is bool(standby)
    assert f"with 1 worker(s) and {standby} standby" in printed(output)


def test_an_owned_server_that_cannot_start_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"faults": "nan", "streams": 1, "tokens": 1, "seconds": 1.0, "seed": 1, "log": None}
    for settings, message in (
        (Settings(backend="scripted", workers=0), "--workers 0"),
        (Settings(model=str(tmp_path / "none")), "none"),
    ):
        with pytest.raises(CommandFailed, match=message):
            run_own(settings, console=console(), **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "http://192.0.2.1:8000"}, "is another one"),
        ({"url": "unix:/run/baton.sock"}, "--url: .* not to a Unix socket"),
        ({"url": "nonsense"}, "--url: .* nonsense is another one"),
        ({"faults": "kill,burn"}, "there is no 'burn'"),
        ({"faults": ","}, "name some of kill"),
        ({"url": "http://127.0.0.1:1"}, "no server answers"),
    ],
)
def test_a_server_that_cannot_be_broken_is_refused(changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"url": "http://127.0.0.1:1", "faults": "kill"}
    options |= {"streams": 1, "tokens": 1, "seconds": 1.0, "seed": 1}
    with pytest.raises(CommandFailed, match=message):
        run_chaos(Settings(), model="", confirm=lambda _: True, console=console(), **(options | changes))


def test_faults_are_separated_by_commas() -> None:
    assert choose_faults(" kill, stop ") == ["kill", "stop"]


def test_faults_from_within_need_an_owned_server() -> None:
    assert choose_faults("kill,nan", own=True) == ["kill", "nan"]
    with pytest.raises(CommandFailed, match="'nan' comes from within"):
        choose_faults("kill,nan")


def test_all_means_every_fault_that_the_server_can_be_given() -> None:
    assert choose_faults("all") == list(SIGNALS)
    assert choose_faults(" all ", own=True) == [*SIGNALS, *PLANNED]
    with pytest.raises(CommandFailed, match="there is no 'all'"):
        choose_faults("kill,all")
