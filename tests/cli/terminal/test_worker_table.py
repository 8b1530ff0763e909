"""The table of workers that `baton admin workers` prints."""

import pytest

from cli.terminal.worker_table import show_workers

WORKER = {
    "name": "w0",
    "model": "m",
    "state": "given_up",
    "role": "standby",
    "phases": "prefill",
    "circuit": "closed",
    "device": None,
    "address": None,
    "pid": 4242,
    "restarts": 5,
    "slots_active": 1,
    "slots_total": 8,
    "queue_depth": 3,
    "reason": "it [left]",
    "last_failure": {"incarnation": 5, "origin": "within", "reason": "it [left] (internal_error)", "ago_s": 61.7},
}


def test_each_worker_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_workers([{**WORKER, "model": "m[red]", "reason": "it [left] :cat:"}])
    heading, line = capsys.readouterr().out.splitlines()
    assert line.split() == [
        "w0",
        "m[red]",
        "given_up",
        "standby",
        "prefill",
        "closed",
        "-",
        "-",
        "4242",
        "5",
        "1/8",
        "3",
        "it",
        "[left]",
        ":cat:",
        "within,",
        "62",
        "s",
        "ago:",
        "it",
        "[left]",
        "(internal_error)",
    ]
    shown = [*list(WORKER)[:6], "device", "address", "pid", "restarts", "slots", "queue", "why", "last", "failure"]
    assert heading.split() == shown


def test_a_worker_that_never_failed_has_no_last_failure(capsys: pytest.CaptureFixture[str]) -> None:
    show_workers([{**WORKER, "reason": "", "last_failure": None}])
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["3", "-"]
