"""`baton scale` on real Ray clusters of processes, under live streams: a node is lost, another one is out of reach and
comes back, the number of workers follows the queue, and the head is lost.

Run with the `ray` extra: `pip install '.[ray]'`.
"""

import contextlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from bench.scale_out.placed_fleet import (
    PlacedFleet,
    ReadStream,
    placed_fleet,
    ray_nodes,
    start_streams,
    texts_of,
)
from tests.cli.commands.test_serve import DEADLINE_S

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the `ray` extra"),
    pytest.mark.slow,
]

STREAMS = 8
TOKENS = 400
SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Ray gives up a silent node after some 12 s, and nodes end 10 s after their head. By default it takes a minute."""


@pytest.mark.timeout(400)
def test_nodes_that_are_lost_or_out_of_reach_lose_no_stream_and_their_workers_are_replaced(tmp_path: Path) -> None:
    with placed_fleet(tmp_path, 2, slots=STREAMS, environment=SOON) as fleet:
        before = fleet.workers()
        expected = texts_of(start_streams(fleet.url, STREAMS, TOKENS))
        assert all(expected)
        streams = start_on_all(fleet, STREAMS)
        assert fleet.nodes.do("lose 0")["processes"] > 3
        fleet.nodes.do("add")
        assert texts_of(streams) == expected
        (lost,) = replaced(fleet)
        after = fleet.workers()
        assert texts_of(start_streams(fleet.url, STREAMS, TOKENS)) == expected
        assert sorted(after) == ["ray-0", "ray-1"]
        assert [name for name in after if after[name]["pid"] != before[name]["pid"]] == [lost]
        assert after[lost]["incarnation"] > before[lost]["incarnation"]

        # The other node is out of reach until another one has its worker.
        streams = start_on_all(fleet, STREAMS)
        assert fleet.nodes.do("freeze 1")["processes"] > 3
        fleet.nodes.do("add")
        assert texts_of(streams) == expected
        (frozen,) = replaced(fleet)
        assert frozen != lost
        replacement = fleet.workers()[frozen]
        old = psutil.Process(after[frozen]["pid"])
        assert rejections(fleet, "key") == 0
        fleet.nodes.do("thaw 1")
        until_ended(old)
        assert rejections(fleet, "key") > 0
        assert texts_of(start_streams(fleet.url, STREAMS, TOKENS)) == expected
        now = fleet.workers()[frozen]
        assert [now[each] for each in ("pid", "incarnation")] == [replacement[each] for each in ("pid", "incarnation")]

        shown = run("scale", "--status", *fleet.options)
        assert shown.stdout.count("running") == shown.stdout.count("ready") == 2, shown
        assert run("scale", "--stop", *fleet.options).stderr.split().count("removed") == 2
        fleet.scale.until("scaling_ends")
        fleet.scale.process.wait(DEADLINE_S)
        assert fleet.scale.process.returncode == 0
        assert fleet.workers() == {}


@pytest.mark.timeout(400)
def test_workers_follow_the_queue_and_serve_on_without_the_head(tmp_path: Path) -> None:
    scaling = ("--replicas", "1", "--max-replicas", "2", "--target-queue", "2", "--scale-down-s", "3")
    grace = ("--shutdown-grace-s", "1")
    with placed_fleet(tmp_path, 2, slots=4, scaling=scaling, serving=grace, environment=SOON) as fleet:
        expected = texts_of(start_streams(fleet.url, 4, TOKENS))
        assert all(expected)
        streams = [ReadStream(fleet.url, number % 4, TOKENS) for number in range(10)]
        for stream in streams:
            stream.start()
        fleet.scale.until("fleet_complete")
        assert texts_of(streams) == [expected[number % 4] for number in range(10)]

        # Each worker has one of two streams, which one of them could serve alone.
        streams = start_on_all(fleet, 2)
        fleet.scale.until("place_given_up")
        assert all(stream.is_alive() for stream in streams)
        assert texts_of(streams) == expected[:2]
        assert sorted(fleet.workers()) == ["ray-0"]
        changes = [(line["before"], line["workers"]) for line in fleet.scale.named("replicas_changed")]
        assert changes == [(1, 2), (2, 1)]

        streams = start_on_all(fleet, 2)
        served = fleet.workers()["ray-0"]
        worker = psutil.Process(served["pid"])
        raylet = worker.parents()[2]
        fleet.nodes.do("lose-head")
        assert texts_of(streams) == expected[:2]
        assert "the head of the Ray cluster does not answer" in fleet.scale.until("scaling_waits")["reason"]
        assert fleet.scale.until("command_failed")["problem"].endswith("its workers serve on without it")
        assert fleet.scale.process.wait(DEADLINE_S) == 1
        until_ended(raylet)
        assert texts_of(start_streams(fleet.url, 4, TOKENS)) == expected
        assert fleet.workers()["ray-0"]["pid"] == worker.pid

        with ray_nodes(1) as others, fleet.scaled_on(others) as scale:
            streams = start_on_all(fleet, 2)
            scale.until("worker_starts")
            until_ended(worker)
            assert texts_of(streams) == expected[:2]
            assert fleet.workers()["ray-0"]["incarnation"] > served["incarnation"]
            run("scale", "--stop", "--ray", others.address, *fleet.options[2:])
            scale.until("scaling_ends")


def start_on_all(fleet: PlacedFleet, count: int) -> list[ReadStream]:
    """Start so many streams, of which each worker has some."""
    streams = start_streams(fleet.url, count, TOKENS)
    while not all(each["slots_active"] for each in fleet.workers().values()):
        pass
    return streams


def replaced(fleet: PlacedFleet) -> list[str]:
    """The workers whose places are lost until the fleet is complete."""
    known = len(fleet.scale.named("place_lost"))
    fleet.scale.until("place_lost")
    fleet.scale.until("fleet_complete")
    return [line["worker"] for line in fleet.scale.named("place_lost")[known:]]


def until_ended(process: psutil.Process) -> None:
    """Until a process that is no child of this one has ended."""
    until = time.monotonic() + DEADLINE_S
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.1)


def rejections(fleet: PlacedFleet, reason: str) -> float:
    """The connections that were refused for a reason."""
    text = httpx.get(f"{fleet.url}/metrics", headers={"authorization": "Bearer admin"}, timeout=DEADLINE_S).text
    found = [
        line.split()[1]
        for line in text.splitlines()
        if "baton_link_refused_total{" in line and f'reason="{reason}"' in line
    ]
    return sum(map(float, found))


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "cli", *words, "--log-level", "error"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
