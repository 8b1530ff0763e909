"""Two gateways that share Redis and their workers, each a process of its own."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from actors.transport.allow_list import AllowList
from actors.transport.keys import make_gateway_key, make_key
from bench.harness.child_server import free_port
from bench.scale_out.placed_fleet import LoggedProcess


@dataclass
class SharedGateway:
    """A gateway."""

    url: str
    process: "subprocess.Popen[str]"

    def kill(self) -> None:
        """End it as a machine ends that loses its power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end."""
        self.process.terminate()


@contextmanager
def shared_gateways(folder: Path, workers: int, slots: int, grace_s: float = 30.0) -> Iterator[list[SharedGateway]]:
    """Two gateways, which stop within `grace_s`, and so many workers of 40 tokens a second that have joined both.
    `folder` gets the keys. Raises `FileNotFoundError` without a `redis-server`."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise FileNotFoundError("redis-server is not installed")
    key = make_gateway_key(folder / "keys")
    names = [f"w{number}" for number in range(workers)]
    for name in names:
        AllowList(folder / "keys").add(name, make_key(folder / f"{name}.key").public_text)
    socket = folder / "redis.sock"
    with ExitStack() as stack:
        stack.enter_context(
            _child([redis, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)])
        )
        gateways: list[SharedGateway] = []
        logs: list[LoggedProcess] = []
        addresses: list[str] = []
        for _ in range(2):
            port, address = free_port(), f"tcp://127.0.0.1:{free_port()}"
            serve = ["serve", "--backend", "scripted", "--workers", "0", "--port", str(port)]
            serve += ["--listen-workers", address, "--keys-dir", str(folder / "keys")]
            serve += ["--redis-url", f"unix://{socket}", "--shutdown-grace-s", str(grace_s)]
            process = stack.enter_context(_child([sys.executable, "-m", "cli", *serve]))
            gateways.append(SharedGateway(f"http://127.0.0.1:{port}", process))
            logs.append(LoggedProcess(process))
            addresses.append(address)
        for log in logs:
            log.until("listening")
        for name in names:
            join = [word for address in addresses for word in ("--join", address)]
            join += ["--server-key", key.public_text, "--key-file", str(folder / f"{name}.key")]
            worker = ["worker", "--backend", "scripted", "--max-batch-size", str(slots), *join]
            process = stack.enter_context(_child([sys.executable, "-m", "bench.scale_out.paced_worker", *worker]))
            _discard(process)
        for log in logs:
            log.until("ready")
            _discard(log.process)
        yield gateways


def _discard(process: "subprocess.Popen[str]") -> None:
    """Read the log of a process, so that its pipe does not fill."""
    Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]


@contextmanager
def _child(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a command until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
