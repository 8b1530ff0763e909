"""The server under attack: the command `baton serve` in a process of its own, and what is seen of it from outside."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness.loop_watchdog import LongestTurn
from tests.ports import port_for_later

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
START_S = 60.0


@dataclass(frozen=True)
class AttackedServer:
    """A running server with one scripted worker named `scripted`."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path
    turns: Path
    host: str = HOST

    def connect(self, timeout_s: float = 20.0) -> socket.socket:
        """A bare connection."""
        return socket.create_connection((self.host, self.port), timeout=timeout_s)

    def request(
        self, method: str, path: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """The status and the body of the answer to one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def is_live(self) -> bool:
        """It answers the probe of its life."""
        return self.request("GET", "/health/live")[0] == 200

    @property
    def rss(self) -> int:
        """Resident memory of the gateway in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def connections(self) -> int:
        """TCP connections that the gateway holds open, in any state but LISTEN."""
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(each.status != psutil.CONN_LISTEN and each.laddr.port == self.port for each in found)

    @property
    def live_sequences(self) -> int:
        """Sequences that the gateway has open: on workers, and in its own queue."""
        lines = self.request("GET", "/metrics")[1].decode().splitlines()
        counted = ("baton_live_sequences{", "baton_waiting_sequences{")
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(counted))

    @property
    def longest_turn(self) -> LongestTurn:
        """The longest turn of the gateway's event loop since the start, or since `forget_turns`."""
        return LongestTurn.read(self.turns)

    def forget_turns(self) -> None:
        """Begin to measure anew."""
        os.kill(self.process.pid, signal.SIGUSR2)
        self.request("GET", "/health/live")

    def wait_until_ready(self) -> None:
        """Wait until the worker takes requests; the test's time limit ends a wait in vain."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self.process.returncode}:\n{self.log.read_text()}")
            try:
                if self.request("GET", "/health/ready")[0] == 200:
                    return
            except OSError:
                pass  # it does not listen yet
            time.sleep(0.02)
        raise RuntimeError(f"the server was not ready in time:\n{self.log.read_text()}")


@contextmanager
def attacked_server(folder: Path, *words: str, host: str = HOST, **environment: str) -> Iterator[AttackedServer]:
    """Run `baton serve` with these further words on the command line, and these environment variables."""
    port, log, turns = port_for_later(), folder / "log", folder / "turns"
    command = [sys.executable, "-m", "tests.attacks.watched", str(turns)]
    command += ["serve", "--backend", "scripted", "--host", host, "--port", str(port), "--log-level", "info", *words]
    inherited: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=inherited | environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL
        )
    server = AttackedServer(process, port, log, turns, host)
    try:
        server.wait_until_ready()
        server.forget_turns()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
