"""Disks without room: for the sockets of workers, for logs, and for the cache of compiled graphs."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.environment.surrounded import ROOT, WAIT_S, Surrounded, needs_namespaces, surrounded
from tests.gateway.harness.serving import COMPLETION
from workers.iree.build.cache import CacheError, GraphCache

KIB = 1024
TINY = "mount -t tmpfs -o size=64k,nr_inodes=64 tmpfs"


class Filler:
    """Takes every file that fits into a folder, as soon as there is room for one."""

    def __init__(self, folder: Path) -> None:
        self.full = threading.Event()
        self._folder = folder
        self._stop = threading.Event()
        self._files: list[Path] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Filler":
        self._thread.start()
        assert self.full.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for file in self._files:
            file.unlink()

    def _run(self) -> None:
        while not self._stop.is_set():
            file = self._folder / f"fill{len(self._files)}"
            try:
                file.touch()
            except OSError:
                self.full.set()
                time.sleep(0.001)  # lets the test's own thread run
                continue
            self._files.append(file)
            with contextlib.suppress(OSError):  # there are more files than bytes
                file.write_bytes(bytes(4 * KIB))


def starved(gateway: Surrounded) -> bool:
    """True when its worker could not be started more than once; if it could, it is killed again."""
    (worker,) = gateway.workers()
    if worker["state"] == "ready":
        with contextlib.suppress(ProcessLookupError):  # it was killed just before
            os.kill(worker["pid"], signal.SIGKILL)
    return worker["restarts"] >= 3 and worker["state"] == "backoff" and "No space left on device" in worker["reason"]


def over_tmp() -> list[str]:
    """Commands that mount a tiny file system over /tmp. The checkout and the interpreter stay, if they are there."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), ROOT}
    kept = list(enumerate(sorted(path for path in needed if path.is_relative_to("/tmp")), 3))
    opened = [f"exec {number}< {path}" for number, path in kept]
    bound = [f"mkdir -p {path} && mount -c --bind /proc/self/fd/{number} {path}" for number, path in kept]
    return [*opened, f"{TINY} /tmp", *bound]


@needs_namespaces
def test_a_worker_that_served_comes_back_when_there_is_room_for_its_socket() -> None:
    """Its socket needs a folder: in the user's run-time folder, the temporary one, or /tmp. All are full."""
    environment = {"TMPDIR": "/tmp", "XDG_RUNTIME_DIR": "/tmp"}
    with surrounded(mounts=over_tmp(), environment=environment) as gateway:
        with Filler(gateway.inside("/tmp")):
            gateway.until(lambda: starved(gateway))
        answer = gateway.client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 200, answer.text


def test_logs_that_cannot_be_written_disturb_nothing() -> None:
    with surrounded(stderr=Path("/dev/full")) as gateway:
        for _ in range(3):
            os.kill(gateway.workers()[0]["pid"], signal.SIGKILL)
            answer = gateway.client.post("/v1/completions", json=COMPLETION)
            assert answer.status_code == 200, answer.text


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=64", "tmpfs", str(folder)], check=False
    ).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=WAIT_S)


@needs_namespaces
def test_a_cache_without_room_says_so_keeps_what_it_has_and_uses_room_again(tiny: Path) -> None:
    def make(file: Path) -> None:
        file.write_bytes(bytes(4 * KIB))

    cache = GraphCache(tiny / "cache")
    first = cache.get("first", make)
    with Filler(tiny):
        for name in ("second", "third"):
            with pytest.raises(CacheError, match="No space left on device; free some space or set --cache-dir"):
                cache.get(name, make)
        assert cache.find("first") == first
    assert cache.get("second", make).stat().st_size == 4 * KIB
