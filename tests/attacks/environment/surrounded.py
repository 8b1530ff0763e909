"""A gateway in a process of its own, with surroundings that the test chooses."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.attacks.environment.gateway_process import Surroundings

SCRIPT = Path(__file__).with_name("gateway_process.py")
ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="needs root, for a mount namespace of its own"
)


@dataclass
class Surrounded:
    """A running gateway."""

    process: "subprocess.Popen[str]"
    client: httpx.Client

    def workers(self) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = self.client.get("/admin/workers").json()["workers"]
        return shown

    def until(self, true: Callable[[], Any]) -> None:
        """Until it holds; the test's time limit ends a wait in vain."""
        while not true():
            assert self.process.poll() is None, "the gateway has ended"

    def ready(self) -> None:
        self.until(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return all(each["state"] == "ready" for each in self.workers())
        except httpx.ConnectError:
            return False  # its port is bound, and it does not listen yet

    def inside(self, path: str) -> Path:
        """A path as the gateway sees it, in its mount namespace."""
        return Path(f"/proc/{self.process.pid}/root{path}")


@contextmanager
def surrounded(
    given: Surroundings | None = None,
    *,
    mounts: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    stderr: Path | None = None,
) -> Iterator[Surrounded]:
    """A gateway whose workers are ready. `mounts` are shell commands in a mount namespace of its own. It must end
    cleanly on SIGTERM."""
    command = [sys.executable, str(SCRIPT), msgspec.json.encode(given or Surroundings()).decode()]
    if mounts:
        command = ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$0" "$@"']), *command]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    with open(stderr or os.devnull, "w") as errors:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, trust_env=False) as client:
            running = Surrounded(process, client)
            running.ready()
            yield running
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
