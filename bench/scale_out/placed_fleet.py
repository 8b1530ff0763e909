"""A server whose workers are on a Ray cluster of this machine, each part in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
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
        self.lines: list[dict[str, Any]] = []
        """The lines of the log that were read."""

    def until(self, event: str) -> dict[str, Any]:
        """The next line of the log with this event. Raises `RuntimeError` if the process ends before."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            if text.startswith("{"):
                self.lines.append(line := json.loads(text))
                if line["event"] == event:
                    return dict(line)
        raise RuntimeError(f"the process ended before {event}")

    def named(self, event: str) -> list[dict[str, Any]]:
        """The lines with this event that were read."""
        return [line for line in self.lines if line["event"] == event]


class PlacedFleet:
    """The cluster, the server and `baton scale`."""

    def __init__(self, nodes: RayNodes, url: str, scale: LoggedProcess, words: Sequence[str]) -> None:
        """`url` is that of the server, and `words` are those of the command `baton scale` without the cluster."""
        self.nodes = nodes
        self.url = url
        self.scale = scale
        self._words = words

    @property
    def options(self) -> list[str]:
        """The options with which `baton scale` reaches cluster and server."""
        return ["--ray", self.nodes.address, "--url", self.url, "--admin-key", ADMIN]

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers of the server by name."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        listed = httpx.get(f"{self.url}/admin/workers", headers=headers, timeout=ANSWER_S).json()["workers"]
        return {each["name"]: each for each in listed}

    @contextmanager
    def scaled_on(self, nodes: RayNodes) -> Iterator[LoggedProcess]:
        """Another `baton scale` with the same words, for another cluster."""
        words = ["scale", "--ray", nodes.address, *self._words]
        with _child("bench.scale_out.paced_scale", words, subprocess.PIPE) as process:
            yield LoggedProcess(process)


@contextmanager
def ray_nodes(count: int, environment: Mapping[str, str] | None = None) -> Iterator[RayNodes]:
    """A cluster of so many nodes, with variables for its processes."""
    with _child("bench.scale_out.ray_nodes", [str(count)], subprocess.DEVNULL, environment) as process:
        yield RayNodes(process)


@contextmanager
def placed_fleet(
    folder: Path,
    count: int,
    slots: int,
    *,
    scaling: Sequence[str] = (),
    serving: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[PlacedFleet]:
    """So many nodes with a worker each, all ready; or as many workers as the options `scaling` say. `folder` gets the
    keys, `serving` are further options of the server, and `environment` are variables of the cluster."""
    make_gateway_key(folder / "keys")
    port, address = free_port(), f"tcp://127.0.0.1:{free_port()}"
    serve = ["serve", "--backend", "scripted", "--workers", "0", "--port", str(port), "--admin-key", ADMIN]
    serve += ["--listen-workers", address, "--keys-dir", str(folder / "keys"), *serving]
    with ExitStack() as stack:
        nodes = stack.enter_context(ray_nodes(count, environment))
        server = LoggedProcess(stack.enter_context(_child("cli", serve, subprocess.PIPE)))
        server.until("listening")
        url = f"http://127.0.0.1:{port}"
        words = ["--url", url, "--admin-key", ADMIN, "--backend", "scripted", "--join", address]
        words += ["--max-batch-size", str(slots), *(scaling or ("--replicas", str(count)))]
        command = ["scale", "--ray", nodes.address, *words]
        scale = stack.enter_context(_child("bench.scale_out.paced_scale", command, subprocess.PIPE))
        fleet = PlacedFleet(nodes, url, LoggedProcess(scale), words)
        fleet.scale.until("fleet_complete")
        # Nobody reads the server's log from here on, and its pipe must not fill.
        Thread(target=server.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        yield fleet


@contextmanager
def _child(
    module: str, arguments: Sequence[str], stderr: int, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a module until the block ends; the cluster ends with its stdin, and others are killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **QUIET, **(environment or {})},
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
