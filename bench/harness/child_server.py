"""A server in a child process: a free port for it, its start, and the wait until it answers."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class NotReadyError(Exception):
    """Raised when a server ends, or takes too long, before it answers."""


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ok(url: str, process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Wait until a GET of `url` is answered with success. Raises `NotReadyError`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotReadyError(f"ended with status {process.returncode} while it loaded")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise NotReadyError(f"was not ready after {timeout_s:g} s")


@contextmanager
def running(command: Sequence[str], health: str, timeout_s: float, stderr: int | None = None) -> Iterator[None]:
    """Run a server until the block ends, which begins when a GET of `health` succeeds. `stderr` is that of
    `subprocess.Popen`. Raises `NotReadyError`."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as process:
        try:
            wait_until_ok(health, process, timeout_s)
            yield
        finally:
            process.terminate()
