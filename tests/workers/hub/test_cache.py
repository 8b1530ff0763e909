"""The models of the hub's cache: listed, and removed."""

import os
from pathlib import Path

import pytest

from protocol.hub_id import HubId
from tests.workers.hub.conftest import TINY
from tests.workers.hub.hub_server import HubServer
from workers.hub.cache import SHORTEST_COMMIT, HubCache
from workers.hub.download import Download
from workers.hub.errors import HubCause, HubError


def two_revisions(hub: HubServer, tiny: Download) -> tuple[Path, Path]:
    """The folders of an older revision and of the newest one, which share all files but one."""
    older = tiny.run(tiny.plan())
    hub.repos[TINY.repo]["generation_config.json"] = b'{"temperature": 0.5}'
    return older, tiny.run(tiny.plan())


def test_no_cache_has_no_models(cache: Path) -> None:
    assert HubCache(cache).read().models == ()


def test_a_model_is_listed_with_its_revision_and_its_size(hub: HubServer, tiny: Download, cache: Path) -> None:
    older, newer = two_revisions(hub, tiny)
    os.utime((newer / "config.json").resolve(), (2e9, 2e9))
    content = HubCache(cache).read()
    listed = {model.path: model for model in content.models}
    assert {*listed} == {older, newer}
    one, other = listed[newer], listed[older]
    assert (str(one.id), one.refs, one.commit) == ("org/tiny", ("main",), newer.name)
    assert str(other.id) == f"org/tiny@{older.name}"
    assert one.size == sum(file.stat().st_size for file in newer.iterdir())
    assert one.last_used == 2e9
    assert content.unreadable == {}


@pytest.mark.parametrize("length", [SHORTEST_COMMIT, 40])
def test_a_revision_is_removed_and_the_other_one_stays_whole(
    hub: HubServer, tiny: Download, cache: Path, length: int
) -> None:
    older, newer = two_revisions(hub, tiny)
    freed = HubCache(cache).remove(HubId(TINY.repo, older.name[:length]))
    assert (older.exists(), tiny.cached(), freed > 0) == (False, newer, True)


def test_a_repository_is_removed_with_what_interrupted_downloads_left(
    hub: HubServer, tiny: Download, cache: Path
) -> None:
    two_revisions(hub, tiny)
    store = HubCache(cache)
    (store.folder_of(TINY) / "blobs" / "0123.89abcdef.incomplete").write_bytes(bytes(1_000_000))
    assert store.remove(TINY) > 1_000_000
    assert not store.folder_of(TINY).exists()
    assert tiny.cached() is None


def test_a_download_that_has_only_begun_is_unreadable_and_can_be_removed(cache: Path) -> None:
    store = HubCache(cache)
    blobs = store.folder_of(TINY) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "0123.89abcdef.incomplete").write_bytes(bytes(1000))
    content = store.read()
    assert content.models == ()
    assert [*content.unreadable] == [store.folder_of(TINY)]
    assert "Snapshots dir doesn't exist" in content.unreadable[store.folder_of(TINY)]
    assert store.remove(TINY) == 1000
    assert not store.folder_of(TINY).exists()


@pytest.mark.parametrize("revision", ["", "v2", "0123456"])
def test_what_is_not_there_cannot_be_removed(hub: HubServer, tiny: Download, cache: Path, revision: str) -> None:
    other = HubId(TINY.repo, revision) if revision else HubId("org/other")
    folder = tiny.run(tiny.plan())
    for model in (other, HubId(TINY.repo, folder.name[: SHORTEST_COMMIT - 1])):
        with pytest.raises(HubError, match="does not have") as failed:
            HubCache(cache).remove(model)
        assert failed.value.cause is HubCause.NOT_FOUND
    assert tiny.cached() == folder
