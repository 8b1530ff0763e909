"""The directory of the prefix tier while a server runs."""

from pathlib import Path

import pytest

from cli.config.errors import CommandFailed
from cli.config.prefix_directory import prefix_directory
from cli.config.settings import Settings
from workers.prefix_store import directory as directories


def test_a_directory_in_memory_ends_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory"
    monkeypatch.setattr("cli.config.prefix_directory.default_directory", lambda: path)
    with prefix_directory(Settings(prefix_cache_bytes=1 << 20)):
        assert path.is_dir()
        worker = directories.StoreDirectory(path, 1 << 20, temporary=True)
        worker.close()
        assert path.is_dir(), "the server has it open"
    assert not path.exists()


def test_a_named_directory_stays(tmp_path: Path) -> None:
    path = tmp_path / "named"
    with prefix_directory(Settings(prefix_cache_bytes=1 << 20, prefix_cache_dir=str(path))):
        pass
    assert path.is_dir()


@pytest.mark.parametrize(("most", "enabled"), [(0, True), (1, False)])
def test_without_a_tier_there_is_no_directory(tmp_path: Path, most: int, enabled: bool) -> None:
    path = tmp_path / "named"
    settings = Settings(prefix_cache_dir=str(path), prefix_cache_bytes=most, prefix_cache=enabled)
    with prefix_directory(settings.from_sources({"prefix_cache_bytes": "--prefix-cache-bytes"})):
        assert not path.exists()


def test_a_directory_without_its_bytes_is_refused(tmp_path: Path) -> None:
    settings = Settings(prefix_cache_dir=str(tmp_path))
    with (
        pytest.raises(CommandFailed, match="--prefix-cache-dir needs --prefix-cache-bytes"),
        prefix_directory(settings),
    ):
        pass


def test_an_unusable_directory_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir(mode=0o755)
    with (
        pytest.raises(CommandFailed, match=r"--prefix-cache-dir: .*mode must be 0700"),
        prefix_directory(Settings(prefix_cache_bytes=1, prefix_cache_dir=str(path))),
    ):
        pass


def test_the_default_directory_is_in_memory_where_there_is_such(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Path("/dev/shm")
    path = directories.default_directory()
    assert (path.parent == memory) == memory.is_dir()
