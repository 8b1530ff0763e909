"""The table of a trial."""

import io

import httpx
from rich.console import Console

from cli.chaos.faults import PLANNED
from cli.chaos.http_client import ServerAddress
from cli.chaos.report import print_report
from cli.chaos.rounds import ClientImpact
from cli.chaos.trial import Trial
from cli.chaos.workers_watcher import WorkersWatcher
from cli.client.administration import Administration


def empty_trial() -> Trial:
    return Trial(ServerAddress("127.0.0.1", 1), WorkersWatcher(Administration(httpx.Client())), [], seed=1)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_a_line_for_each_fault_and_why_a_stream_failed() -> None:
    trial = empty_trial()
    trial.rounds = {"kill": 2, "stop": 1}
    trial.impacts = {
        "kill": ClientImpact(16, 0, 0, 0, (0.25, 0.5), 0.02),
        "stop": ClientImpact(8, 1, 0, 0, (), 0.02, "lost [x]"),
    }
    wide = Console(file=io.StringIO(), width=200)
    print_report(trial, wide)
    _, kill, stop, problem = printed(wide).splitlines()
    assert kill.split() == ["kill", "2", "16", "0", "0", "0", "2", "500", "500", "20"]
    assert stop.split() == ["stop", "1", "8", "1", "0", "0", "0", "-", "-", "20"]
    assert problem == "stop: lost [x]"


def test_the_table_fits_into_80_columns() -> None:
    trial = empty_trial()
    trial.impacts = dict.fromkeys(PLANNED, ClientImpact(100, 10, 10, 10, (10.0,) * 100, 0.5))
    trial.rounds = dict.fromkeys(PLANNED, 10)
    narrow = Console(file=io.StringIO(), width=80)
    print_report(trial, narrow)
    text = printed(narrow)
    assert "\u2026" not in text
    assert all(name in text for name in (*PLANNED, "streams", "altered"))
