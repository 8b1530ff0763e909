"""Virtual environments of peers."""

from pathlib import Path

import pytest

from bench.peers.build import PeerError
from bench.peers.environment import Environment


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE_DIR", str(tmp_path))


def test_nothing_is_left_of_an_installation_that_failed(tmp_path: Path) -> None:
    environment = Environment("peer", (str(tmp_path / "no-such-package"),))
    with pytest.raises(PeerError, match="no-such-package"):
        environment.install()
    assert not environment.folder.exists()
    assert environment.missing == "not installed: run python bench/peers/install.py peer"


def test_what_is_installed_is_kept() -> None:
    environment = Environment("peer", ("no-such-package==0",))
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    assert environment.missing == ""
    environment.install()  # pip, which could not find the package, is not run


def test_other_versions_are_another_environment() -> None:
    assert Environment("peer", ("a==1",)).folder != Environment("peer", ("a==2",)).folder
