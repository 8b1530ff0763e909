"""A server whose workers are on a Ray cluster of this machine, each part in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from actors.transport.keys import make_gateway_key
from bench.harness.child_server import free_port

ADMIN = "admin"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
ANSWER_S = 120.0


class RayNodes:
    """The cluster of `ray_nodes.py`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Wait until it has started."""
        self._process = process
        self.address: str = self._answer()["address"]

    def do(self, command: str) -> dict[str, Any]:
        """Carry a command out."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))


class LoggedProcess:
    """A process of Baton, by the events in its log."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """`process` writes its log to a pipe."""
        self.process = process

    def until(self, event: str) -> dict[str, Any]:
        """The next line of the log with this event. Raises `RuntimeError` if the process ends before."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{") and json.loads(line)["event"] == event:
                return dict(json.loads(line))
        raise RuntimeError(f"the process ended before {event}")


class PlacedFleet:
    """The cluster, the server and `baton scale`."""

    def __init__(self, nodes: RayNodes, url: str, scale: LoggedProcess) -> None:
        """`url` is that of the server."""
        self.nodes = nodes
        self.url = url
        self.scale = scale

    @property
    def options(self) -> list[str]:
        """See `reaching`."""
        return reaching(self.nodes, self.url)

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers of the server by name."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        listed = httpx.get(f"{self.url}/admin/workers", headers=headers, timeout=ANSWER_S).json()["workers"]
        return {each["name"]: each for each in listed}


def reaching(nodes: RayNodes, url: str) -> list[str]:
    """Return the options with which `baton scale` reaches cluster and server."""
    return ["--ray", nodes.address, "--url", url, "--admin-key", ADMIN]


@contextmanager
def placed_fleet(folder: Path, count: int, slots: int) -> Iterator[PlacedFleet]:
    """So many nodes with a worker each, all ready. `folder` gets the keys."""
    make_gateway_key(folder / "keys")
    port, address = free_port(), f"tcp://127.0.0.1:{free_port()}"
    serve = ["serve", "--backend", "scripted", "--workers", "0", "--port", str(port), "--admin-key", ADMIN]
    serve += ["--listen-workers", address, "--keys-dir", str(folder / "keys")]
    with ExitStack() as stack:
        nodes = RayNodes(stack.enter_context(_child("bench.scale_out.ray_nodes", [str(count)], subprocess.DEVNULL)))
        server = LoggedProcess(stack.enter_context(_child("cli", serve, subprocess.PIPE)))
        server.until("listening")
        wanted = ["--backend", "scripted", "--replicas", str(count), "--join", address, "--max-batch-size", str(slots)]
        url = f"http://127.0.0.1:{port}"
        reach = reaching(nodes, url)
        scale = stack.enter_context(_child("bench.scale_out.paced_scale", ["scale", *reach, *wanted], subprocess.PIPE))
        fleet = PlacedFleet(nodes, url, LoggedProcess(scale))
        fleet.scale.until("fleet_complete")
        # Nobody reads the server's log from here on, and its pipe must not fill.
        Thread(target=server.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        yield fleet


@contextmanager
def _child(module: str, arguments: Sequence[str], stderr: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a module until the block ends; the cluster ends with its stdin, and others are killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **QUIET},
    )
    try:
        yield process
    finally:
        try:
            if module == "bench.scale_out.ray_nodes":
                process.communicate(timeout=ANSWER_S)
        finally:
            process.kill()
            process.communicate()


class ReadStream(Thread):
    """A client that reads one stream to its end."""

    def __init__(self, url: str, number: int, tokens: int) -> None:
        super().__init__()
        self._url = url
        self._body = {"model": "scripted", "prompt": f"Stream {number}", "seed": 7, "max_tokens": tokens}
        self.text = ""
        self.finish = ""
        self.stamps: list[float] = []

    def run(self) -> None:
        """Read it."""
        body = self._body | {"ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=ANSWER_S) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                    self.text += choice["text"]
                    self.finish += choice["finish_reason"] or ""
                    self.stamps.append(time.perf_counter())

    @property
    def gap_s(self) -> float:
        """The longest time between two pieces."""
        return max((later - earlier for earlier, later in zip(self.stamps, self.stamps[1:], strict=False)), default=0.0)


def start_streams(url: str, count: int, tokens: int) -> list[ReadStream]:
    """Start so many streams. Stream N has the same text each time."""
    streams = [ReadStream(url, number, tokens) for number in range(count)]
    for stream in streams:
        stream.start()
    return streams


def texts_of(streams: Sequence[ReadStream]) -> list[str]:
    """Wait for the ends of streams; the text of each, empty for one that did not end as it should."""
    for stream in streams:
        stream.join()
    return [stream.text if stream.finish == "length" else "" for stream in streams]
