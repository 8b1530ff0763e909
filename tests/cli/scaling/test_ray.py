"""`baton scale` on a real Ray cluster of processes: a node is lost under live streams.

Run with the `ray` extra: `pip install '.[ray]'`.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from bench.scale_out.placed_fleet import placed_fleet, start_streams, texts_of
from tests.cli.commands.test_serve import DEADLINE_S

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the `ray` extra"),
    pytest.mark.slow,
]

STREAMS = 8
TOKENS = 400


@pytest.mark.timeout(300)
def test_a_lost_node_loses_no_stream_and_its_worker_is_replaced(tmp_path: Path) -> None:
    with placed_fleet(tmp_path, 2, slots=STREAMS) as fleet:
        before = fleet.workers()
        expected = texts_of(start_streams(fleet.url, STREAMS, TOKENS))
        assert all(expected)
        streams = start_streams(fleet.url, STREAMS, TOKENS)
        while not all(each["slots_active"] for each in fleet.workers().values()):
            pass
        assert fleet.nodes.do("lose 0")["processes"] > 3
        fleet.nodes.do("add")
        assert texts_of(streams) == expected
        fleet.scale.until("place_lost")
        fleet.scale.until("fleet_complete")
        after = fleet.workers()
        assert texts_of(start_streams(fleet.url, STREAMS, TOKENS)) == expected
        replaced = [name for name in after if after[name]["pid"] != before[name]["pid"]]
        assert (sorted(after), len(replaced)) == (["ray-0", "ray-1"], 1)
        assert after[replaced[0]]["incarnation"] > before[replaced[0]]["incarnation"]
        shown = run("scale", "--status", *fleet.options)
        assert shown.stdout.count("running") == shown.stdout.count("ready") == 2, shown
        assert run("scale", "--stop", *fleet.options).stderr.split().count("removed") == 2
        fleet.scale.until("scaling_ends")
        fleet.scale.process.wait(DEADLINE_S)
        assert fleet.scale.process.returncode == 0
        assert fleet.workers() == {}


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "cli", *words, "--log-level", "error"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
