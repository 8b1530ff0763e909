"""The container image without a builder of images: the wheel serves as process 1 of a read-only sandbox."""

import json
import os
import platform
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.baton_serve.installation import Installation, dependencies
from tests.cli.commands.test_serve import PIPE_BYTES
from tests.deploy.test_healthcheck import check
from tests.ports import port_for_later

CPU = {"x86_64": "avx2", "aarch64": "neon"}.get(platform.machine(), "host")
START_S = 300.0


def works() -> bool:
    """Bubblewrap is installed, and may make namespaces."""
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--uid", "10001", "--unshare-pid", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(command, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.skipif(not works(), reason="bubblewrap is not installed, or may make no namespaces"),
    pytest.mark.timeout(900),
    pytest.mark.slow,
]


@dataclass(frozen=True)
class Sandbox:
    """Process, file system and user of a container: all is read-only but the folders of the image's volumes."""

    installation: Installation
    cache: Path
    environment: dict[str, str]

    @property
    def graphs(self) -> Path:
        """The folder of compiled graphs, which the tests share by a link."""
        return (self.cache / "graphs").resolve()

    def command(self, *words: str) -> list[str]:
        folder, cache, graphs = str(self.installation.folder), str(self.cache), str(self.graphs)
        mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run"]
        for each in (folder, *dependencies().split("\n")):  # they may be below /tmp
            mounts += ["--ro-bind", each, each]
        mounts += ["--dir", "/run/baton", "--bind", cache, cache, "--bind", graphs, graphs]
        user = ["--unshare-user", "--uid", "10001", "--gid", "10001", "--cap-drop", "ALL", "--unshare-pid"]
        values = [word for name, value in self.environment.items() for word in ("--setenv", name, value)]
        given = ["--clearenv", *values, "--die-with-parent", "--as-pid-1", "--chdir", "/run/baton"]
        return ["bwrap", *mounts, *user, *given, str(self.installation.baton), *words]


@pytest.fixture
def sandbox(from_wheel: Installation, cache_dir: Path) -> Sandbox:
    pytest.importorskip("iree.compiler")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/run/baton",
        "XDG_RUNTIME_DIR": "/run/baton",
        "BATON_CACHE_DIR": str(cache_dir),
        "BATON_CPU": CPU,
        "BATON_BACKEND": "iree",
        "BATON_MAX_BATCH_SIZE": "1",  # fewer graphs
        "BATON_CONTEXT": "256",
        "BATON_PORT": str(port_for_later()),
    }
    return Sandbox(from_wheel, cache_dir, environment)


@contextmanager
def started(command: list[str]) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """The process, and the number outside of the sandbox of its process 1."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [command[0], "--info-fd", str(writing), *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=PIPE_BYTES,
        pass_fds=[writing],
        text=True,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as info:
            yield process, json.load(info)["child-pid"]
    finally:
        process.kill()
        process.communicate()


def test_the_wheel_serves_as_process_1_from_a_cache_made_before(sandbox: Sandbox) -> None:
    done = subprocess.run(sandbox.command("compile"), capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    compiled = {file.name for file in sandbox.graphs.rglob("*.vmfb")}
    assert compiled
    lines: list[str] = []
    with started(sandbox.command("serve")) as (process, number):
        assert process.stderr is not None
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        for line in process.stderr:
            lines.append(line)
            if json.loads(line)["event"] == "ready":
                break
        watchdog.cancel()
        url = json.loads(lines[-1])["url"]
        assert check(sandbox.environment) == ""
        body = {"model": "baton-tiny", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)
        assert "Paris" in answer.json()["choices"][0]["text"]
        status = Path(f"/proc/{number}/status").read_text()
        assert [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid")] == ["1"]
        os.kill(number, signal.SIGTERM)
        output, rest = process.communicate(timeout=60)
    events = [json.loads(line)["event"] for line in [*lines, *rest.splitlines()]]
    assert (process.returncode, output, events[-1]) == (0, "", "ended")
    assert {file.name for file in sandbox.graphs.rglob("*.vmfb")} == compiled
