"""Disks without room: for the sockets of workers, for logs, and for the cache of compiled graphs."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.environment.surrounded import WAIT_S, Surrounded, needs_namespaces, surrounded
from tests.gateway.harness.serving import COMPLETION
from workers.iree.build.cache import CacheError, GraphCache

KIB = 1024
TINY = "mount -t tmpfs -o size=64k,nr_inodes=64 tmpfs"


def fill(folder: Path) -> list[Path]:
    """Take every file that fits, and every byte."""
    files: list[Path] = []
    while True:
        file = folder / f"fill{len(files)}"
        try:
            file.touch()
        except OSError:
            return files
        files.append(file)
        with contextlib.suppress(OSError):  # there are more files than bytes
            file.write_bytes(bytes(4 * KIB))


def restarts(gateway: Surrounded) -> int:
    count: int = gateway.workers()[0]["restarts"]
    return count


@needs_namespaces
def test_a_worker_that_served_comes_back_when_there_is_room_for_its_socket() -> None:
    """Its socket needs a folder: in the user's run-time folder, the temporary one, or /tmp. All are full."""
    environment = {"TMPDIR": "/tmp", "XDG_RUNTIME_DIR": "/tmp"}
    with surrounded(mounts=[f"{TINY} /tmp"], environment=environment) as gateway:
        files = fill(gateway.inside("/tmp"))
        os.kill(gateway.workers()[0]["pid"], signal.SIGKILL)
        gateway.until(lambda: restarts(gateway) >= 3)
        (worker,) = gateway.workers()
        assert worker["state"] == "backoff"
        assert "No space left on device" in worker["reason"]
        for file in files:
            file.unlink()
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
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=False).returncode:
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
    files = fill(tiny)
    for name in ("second", "third"):
        with pytest.raises(CacheError, match="No space left on device; free some space or set --cache-dir"):
            cache.get(name, make)
    assert cache.find("first") == first
    for file in files:
        file.unlink()
    assert cache.get("second", make).stat().st_size == 4 * KIB
