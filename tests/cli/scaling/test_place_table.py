"""The table of `baton scale --status`."""

import pytest

from cli.commands.scale import print_places
from cli.scaling.placement import PlaceState, WorkerPlace

ENDED = "exit status 1: no [/] in [bold]a:cat: " + "x" * 300
PLACES = {
    "ray-10": WorkerPlace("ray-10", PlaceState.PENDING),
    "ray-2": WorkerPlace("ray-2", PlaceState.RUNNING, "node[1]", 4242),
    "ray-3": WorkerPlace("ray-3", PlaceState.ENDED, "node", 17, why=ENDED),
    "far-1": WorkerPlace("far-1", PlaceState.RUNNING),
}
KNOWN = {
    "ray-2": {"state": "ready", "reason": ""},
    "ray-4": {"state": "backoff", "reason": "[it] left"},
    "w0": {"state": "ready", "reason": ""},
}


def test_each_worker_is_a_line_with_its_cells_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_places("ray", PLACES, KNOWN)
    shown = capsys.readouterr().out.splitlines()
    heading, *lines = ([cell.rstrip() for cell in line.split(maxsplit=5)] for line in shown)
    assert heading == ["name", "place", "machine", "pid", "gateway", "why"]
    assert lines == [
        ["ray-2", "running", "node[1]", "4242", "ready"],
        ["ray-3", "ended", "node", "17", "unknown", ENDED],
        ["ray-4", "none", "-", "-", "backoff", "[it] left"],
        ["ray-10", "pending", "-", "-", "unknown"],
    ]
