"""`baton scale` on a real Ray cluster of processes: a node is lost under live streams.

Run with the `ray` extra: `pip install '.[ray]'`.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from actors.transport.keys import make_gateway_key
from tests.cli.commands.test_serve import DEADLINE_S, SERVE, read_until, serving
from tests.ports import port_for_later

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the `ray` extra"),
    pytest.mark.slow,
]

ADMIN = {"authorization": "Bearer admin"}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
STREAMS = 8
BODY = {"model": "scripted", "seed": 7, "max_tokens": 400, "ignore_eos": True, "stream": True}


class Nodes:
    """The cluster, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.address: str = self._answer()["address"]

    def do(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))


@contextmanager
def ray_nodes(count: int) -> Iterator[Nodes]:
    words = [sys.executable, "-m", "bench.scale_out.ray_nodes", str(count)]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield Nodes(process)
    finally:
        process.communicate(timeout=DEADLINE_S)


class Stream(Thread):
    """A client that reads one stream to its end."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__()
        self.url, self.number = url, number
        self.pieces: list[str] = []
        self.ends: list[str] = []

    def run(self) -> None:
        body = BODY | {"prompt": f"Stream {self.number}"}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=DEADLINE_S) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                        self.pieces.append(choice["text"])
                        self.ends += [choice["finish_reason"]] if choice["finish_reason"] else []


def texts(url: str, during: Any = lambda: None) -> list[str]:
    streams = [Stream(url, number) for number in range(STREAMS)]
    for stream in streams:
        stream.start()
    during()
    for stream in streams:
        stream.join()
    assert [stream.ends for stream in streams] == [["length"]] * STREAMS
    return ["".join(stream.pieces) for stream in streams]


def workers(url: str) -> dict[str, dict[str, Any]]:
    listed = httpx.get(f"{url}/admin/workers", headers=ADMIN, timeout=DEADLINE_S).json()["workers"]
    return {each["name"]: each for each in listed}


@pytest.mark.timeout(300)
def test_a_lost_node_loses_no_stream_and_its_worker_is_replaced(tmp_path: Path) -> None:
    make_gateway_key(tmp_path / "keys")
    address = f"tcp://127.0.0.1:{port_for_later()}"
    serve = [*SERVE, "--workers", "0", "--listen-workers", address, "--keys-dir", str(tmp_path / "keys")]
    with ray_nodes(2) as nodes, serving([*serve, "--admin-key", "admin"]) as gateway:
        url = f"http://127.0.0.1:{json.loads(read_until(gateway, 'listening')[-1])['port']}"
        common = ["--ray", nodes.address, "--url", url, "--admin-key", "admin"]
        wanted = ["--backend", "scripted", "--replicas", "2", "--join", address]
        scale = ["-m", "tests.cli.scaling.paced_scale", "scale", *common, *wanted]
        with serving(scale, QUIET) as scaler:
            read_until(scaler, "fleet_complete")
            before = workers(url)
            expected = texts(url)

            def lose_a_node() -> None:
                while not all(each["slots_active"] for each in workers(url).values()):
                    pass
                assert nodes.do("lose 0")["processes"] > 3
                nodes.do("add")

            assert texts(url, lose_a_node) == expected
            read_until(scaler, "place_lost")
            read_until(scaler, "fleet_complete")
            after = workers(url)
            assert texts(url) == expected
            replaced = [name for name in after if after[name]["pid"] != before[name]["pid"]]
            assert (sorted(after), len(replaced)) == (["ray-0", "ray-1"], 1)
            assert after[replaced[0]]["incarnation"] > before[replaced[0]]["incarnation"]
            shown = run("scale", "--status", *common)
            assert shown.stdout.count("running") == shown.stdout.count("ready") == 2, shown
            assert sorted(run("scale", "--stop", *common).stderr.split()).count("removed") == 2
            read_until(scaler, "scaling_ends")
            scaler.communicate(timeout=DEADLINE_S)
            assert scaler.returncode == 0
        assert workers(url) == {}


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "cli", *words, "--log-level", "error"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
