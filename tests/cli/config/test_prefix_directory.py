"""The prefix tier of a server: its size where the settings leave it open, and its directory while the server runs."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cli.config import prefix_directory
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, worker_spec
from cli.config.prefix_directory import LEAST_BYTES, PrefixTierPlan
from cli.config.settings import Settings
from workers.prefix_store import directory as directories

DEFAULT = Settings().prefix_cache_bytes


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system in memory with all the room that there is."""
    for module in (directories, prefix_directory):
        monkeypatch.setattr(module, "MEMORY", tmp_path)
    has_free(monkeypatch, memory=1 << 40, disk=1 << 40)
    return tmp_path


def has_free(monkeypatch: pytest.MonkeyPatch, *, memory: int, disk: int) -> None:
    monkeypatch.setattr(prefix_directory, "spare_bytes", lambda: memory)
    monkeypatch.setattr(prefix_directory, "statvfs", lambda path: SimpleNamespace(f_bavail=disk, f_frsize=1))


@pytest.mark.parametrize(
    ("free", "disk", "size"),
    [
        (16 * DEFAULT, 2 * DEFAULT, DEFAULT),
        (16 * DEFAULT - 16, 1 << 40, DEFAULT - 1),
        (1 << 40, 2 * DEFAULT - 2, DEFAULT - 1),
        (16 * LEAST_BYTES, 1 << 40, LEAST_BYTES),
        (16 * LEAST_BYTES - 1, 1 << 40, 0),
        (1 << 40, 2 * LEAST_BYTES, LEAST_BYTES),
        (1 << 40, 2 * LEAST_BYTES - 1, 0),
    ],
)
def test_a_size_that_is_left_open_is_a_share_of_what_is_free(
    memory: Path, monkeypatch: pytest.MonkeyPatch, free: int, disk: int, size: int
) -> None:
    has_free(monkeypatch, memory=free, disk=disk)
    plan = PrefixTierPlan.of(Settings())
    assert worker_spec(plan.settings, ChosenModel("m", Path())).prefix_cache_bytes == size
    with capture_logs() as logs:
        plan.report()
    assert [log["event"] for log in logs] == ["prefix_tier" if size else "prefix_tier_off"]
    assert size or str(LEAST_BYTES) in logs[0]["reason"]


def test_a_small_file_system_in_memory_is_reported_with_a_remedy(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_free(monkeypatch, memory=1 << 40, disk=64 << 20)
    assert "--shm-size" in PrefixTierPlan.of(Settings()).off["remedy"]
    directories.default_directory().mkdir(mode=0o700)
    assert "--shm-size" in PrefixTierPlan.of(Settings()).off["remedy"], "also if a server has left its directory"


def test_what_the_directory_has_by_now_is_kept(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Settings(prefix_cache_dir=str(memory / "named"))
    for path, settings in ((directories.default_directory(), Settings()), (memory / "named", named)):
        has_free(monkeypatch, memory=1 << 40, disk=4 * LEAST_BYTES)
        assert PrefixTierPlan.of(settings).settings.prefix_cache_bytes == 2 * LEAST_BYTES
        path.mkdir(mode=0o700)
        (path / "lock").write_bytes((2 * LEAST_BYTES).to_bytes(8, "little"))
        has_free(monkeypatch, memory=1 << 40, disk=2 * LEAST_BYTES)
        assert PrefixTierPlan.of(settings).settings.prefix_cache_bytes == 2 * LEAST_BYTES, "a restart has the same"
        has_free(monkeypatch, memory=0, disk=0)
        assert PrefixTierPlan.of(settings).settings.prefix_cache_bytes == 2 * LEAST_BYTES
        (path / "lock").write_bytes((LEAST_BYTES - 1).to_bytes(8, "little"))
        assert PrefixTierPlan.of(settings).settings.prefix_cache_bytes == 0


def test_a_directory_whose_parent_cannot_be_read_is_reported(memory: Path) -> None:
    (memory / "file").touch()
    below = PrefixTierPlan.of(Settings(prefix_cache_dir=str(memory / "file" / "tier")))
    assert below.settings.prefix_cache_bytes, "its size is no problem"
    with capture_logs() as logs, below.opened():
        pass
    assert [log["event"] for log in logs] == ["prefix_tier_off"]


def test_a_server_without_a_tier_removes_what_killed_ones_have_left(memory: Path) -> None:
    path = directories.default_directory()
    left = directories.StoreDirectory(path, 1 << 20, temporary=True)
    with PrefixTierPlan.of(Settings(prefix_cache=False)).opened():
        assert path.is_dir(), "somebody has it open"
    for descriptor in (left._lock, left._users):
        os.close(descriptor)  # as the system does for a process that is killed
    with PrefixTierPlan.of(Settings(prefix_cache=False)).opened():
        assert not path.exists()


def test_without_a_file_system_in_memory_there_is_no_tier_by_default(
    memory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (directories, prefix_directory):
        monkeypatch.setattr(module, "MEMORY", tmp_path / "none")
    plan = PrefixTierPlan.of(Settings())
    assert plan.settings.prefix_cache_bytes == 0
    assert "--prefix-cache-dir" in plan.off["remedy"]


@pytest.mark.parametrize("settings", [Settings(backend="scripted"), Settings(prefix_cache=False)])
def test_where_nothing_is_kept_nothing_is_said(memory: Path, settings: Settings) -> None:
    plan = PrefixTierPlan.of(settings)
    assert (plan.settings.prefix_cache_bytes, plan.off) == (0, {})


def test_a_size_that_is_set_is_taken_as_it_is(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_free(monkeypatch, memory=0, disk=0)
    for size in (0, 1, 1 << 50):
        assert PrefixTierPlan.of(Settings(prefix_cache_bytes=size)).settings.prefix_cache_bytes == size


def test_a_server_of_one_command_has_a_tier_only_if_it_is_set(memory: Path) -> None:
    assert PrefixTierPlan.given(Settings()).settings.prefix_cache_bytes == 0
    assert PrefixTierPlan.given(Settings(prefix_cache_bytes=5)).settings.prefix_cache_bytes == 5


def test_a_named_directory_may_have_half_of_its_disk(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_free(monkeypatch, memory=0, disk=2 * LEAST_BYTES)
    settings = Settings(prefix_cache_dir=str(memory / "not" / "there"))
    assert PrefixTierPlan.of(settings).settings.prefix_cache_bytes == LEAST_BYTES


def test_a_directory_in_memory_ends_with_the_server(memory: Path) -> None:
    path = memory / f"baton-prefixes-{os.getuid()}"
    with PrefixTierPlan.of(Settings()).opened():
        assert path.is_dir()
        worker = directories.StoreDirectory(path, 1 << 20, temporary=True)
        worker.close()
        assert path.is_dir(), "the server has it open"
    assert not path.exists()


def test_a_named_directory_stays(tmp_path: Path) -> None:
    path = tmp_path / "named"
    with PrefixTierPlan(Settings(prefix_cache_bytes=1 << 20, prefix_cache_dir=str(path))).opened():
        pass
    assert path.is_dir()


@pytest.mark.parametrize(("most", "enabled"), [(0, True), (1, False)])
def test_without_a_tier_there_is_no_directory(tmp_path: Path, most: int, enabled: bool) -> None:
    path = tmp_path / "named"
    settings = Settings(prefix_cache_dir=str(path), prefix_cache_bytes=most, prefix_cache=enabled)
    with PrefixTierPlan.of(settings).opened():
        assert not path.exists()


def test_an_unusable_directory_is_refused_by_name_and_by_default_left_alone(memory: Path) -> None:
    path = memory / f"baton-prefixes-{os.getuid()}"
    path.mkdir(mode=0o755)
    settings = Settings(prefix_cache_bytes=1, prefix_cache_dir=str(path))
    named = PrefixTierPlan.of(settings.from_sources({"prefix_cache_dir": "--prefix-cache-dir"}))
    with pytest.raises(CommandFailed, match=r"--prefix-cache-dir: .*mode must be 0700"), named.opened():
        pass
    with capture_logs() as logs, PrefixTierPlan.of(Settings()).opened():
        pass
    assert [log["event"] for log in logs] == ["prefix_tier_off"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("~no-such-user/x", "there is no such user"), ("/" + 300 * "x", "cannot be used: File name too long")],
    ids=["user", "length"],
)
@pytest.mark.parametrize("size", [{}, {"prefix_cache_bytes": 1 << 30}], ids=["default size", "size"])
def test_a_name_that_the_system_refuses_is_a_sentence(name: str, problem: str, size: dict[str, Any]) -> None:
    settings = Settings(**{"prefix_cache_dir": name} | size).from_sources({"prefix_cache_dir": "--prefix-cache-dir"})
    with (
        pytest.raises(CommandFailed, match=f"^--prefix-cache-dir: .*{problem}"),
        PrefixTierPlan.of(settings).opened(),
    ):
        pass


def test_no_room_is_a_warning_if_the_directory_is_named(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_free(monkeypatch, memory=1 << 40, disk=LEAST_BYTES)
    for name, level in (("", "info"), (str(memory / "named"), "warning")):
        with capture_logs() as logs, PrefixTierPlan.of(Settings(prefix_cache_dir=name)).opened():
            pass
        assert [(log["event"], log["log_level"]) for log in logs] == [("prefix_tier_off", level)]


def test_the_default_directory_is_in_memory_where_there_is_such() -> None:
    path = directories.default_directory()
    assert (path.parent == directories.MEMORY) == directories.MEMORY.is_dir()
