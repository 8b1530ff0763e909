"""Downloads from a hub on loopback into a cache, by `huggingface_hub`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from protocol.hub_id import HubId
from tests.attacks.environment.surrounded import ROOT, needs_namespaces
from tests.workers.hub.conftest import TINY
from tests.workers.hub.hub_server import HubServer
from workers.hub.cache import HubCache
from workers.hub.download import Download
from workers.hub.errors import HubCause, HubError

READ = {
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "model.safetensors"),
}


def bodies(hub: HubServer) -> list[str]:
    """The files whose content was asked for since the last call."""
    asked = [line for line in hub.requests if line.startswith("GET ") and "/resolve/" in line]
    hub.requests.clear()
    return [line.rsplit("/", 1)[1] for line in asked]


def test_what_a_worker_reads_is_downloaded_once(hub: HubServer, tiny: Download) -> None:
    assert tiny.cached() is None
    plan = tiny.plan()
    assert bodies(hub) == []
    published = hub.repos[TINY.repo]
    assert plan.size == plan.missing == sum(len(published[name]) for name in READ)
    seen: list[tuple[int, int]] = []
    folder = tiny.run(plan, lambda done, total: seen.append((done, total)))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {name: published[name] for name in READ}
    assert {*bodies(hub)} == READ
    assert seen == sorted(seen)
    assert seen[-1] == (plan.size, plan.size)
    assert tiny.cached() == folder
    again = tiny.plan()
    assert (again.missing, again.size) == (0, plan.size)
    assert tiny.run(again) == folder
    assert bodies(hub) == []


def test_a_model_in_the_cache_needs_no_hub(hub: HubServer, tiny: Download) -> None:
    folder = tiny.run(tiny.plan())
    hub.requests.clear()
    assert tiny.cached() == folder
    assert hub.requests == []


def test_a_newer_revision_is_downloaded_where_its_files_differ(hub: HubServer, tiny: Download) -> None:
    first = tiny.run(tiny.plan())
    bodies(hub)
    hub.repos[TINY.repo]["generation_config.json"] = b'{"temperature": 0.5}'
    plan = tiny.plan()
    assert plan.missing == 20
    second = tiny.run(plan)
    assert bodies(hub) == ["generation_config.json"]
    assert (second.name, first.exists()) == (hub.commit(TINY.repo), True)


def test_a_connection_that_breaks_is_resumed_after_the_last_whole_chunk(
    hub: HubServer, tiny: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 512)  # of 10 MiB
    weights = hub.repos[TINY.repo]["model.safetensors"]
    hub.repos[TINY.repo] = {name: hub.repos[TINY.repo][name] for name in ("config.json", "model.safetensors")}
    hub.repos[TINY.repo]["config.json"] = b""  # so that the weights' body breaks, whichever is first
    hub.break_after = 1000
    folder = tiny.run(tiny.plan())
    assert (folder / "model.safetensors").read_bytes() == weights
    assert [line.split()[-1] for line in hub.requests if "bytes=" in line] == ["bytes=512-"]


def test_a_download_that_was_interrupted_keeps_complete_files(hub: HubServer, tiny: Download) -> None:
    published = hub.repos[TINY.repo]
    whole, published["model.safetensors"] = published["model.safetensors"], b""
    plan = tiny.plan()
    published["model.safetensors"] = whole
    del published["tokenizer.json"]  # between the plan and the download, which the hub then refuses in part
    partial = tiny.run(plan)
    assert not (partial / "tokenizer.json").exists()
    assert (partial / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_damaged_file_of_the_cache_is_downloaded_again(hub: HubServer, tiny: Download, file: str) -> None:
    folder = tiny.run(tiny.plan())
    bodies(hub)
    os.truncate((folder / file).resolve(), 10)
    assert tiny.cached() is None
    plan = tiny.plan()
    assert (plan.damaged, plan.missing) == ((file,), len(hub.repos[TINY.repo][file]))
    tiny.run(plan)
    assert bodies(hub) == [file]
    assert (folder / file).read_bytes() == hub.repos[TINY.repo][file]
    assert tiny.cached() == folder


@pytest.mark.parametrize("path", ["../../../../other", "{}/other"], ids=["relative", "absolute"])
def test_a_hub_cannot_have_a_file_outside_of_the_cache_removed(
    hub: HubServer, tiny: Download, tmp_path: Path, path: str
) -> None:
    """A file that it lists there, with another size, is no damaged one of the model."""
    other = tmp_path / "other"
    other.write_text("mine")
    hub.repos[TINY.repo][path.format(tmp_path)] = b"x"
    folder = tiny.run(tiny.plan())
    assert (folder / path.format(tmp_path)).resolve() == other.resolve()
    plan = tiny.plan()
    assert plan.damaged == ()
    tiny.run(plan)
    assert other.read_text() == "mine"


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_cache_that_lacks_a_file_is_completed(hub: HubServer, tiny: Download, file: str) -> None:
    folder = tiny.run(tiny.plan())
    (folder / file).resolve().unlink()
    (folder / file).unlink()
    shutil.rmtree(folder.parents[1] / "trees")  # as older versions of `huggingface_hub` leave a cache
    bodies(hub)
    assert tiny.cached() is None
    tiny.run(tiny.plan())
    assert bodies(hub) == [file]
    assert tiny.cached() == folder


def test_a_sharded_model_is_complete_with_all_its_shards(hub: HubServer, tiny: Download) -> None:
    published = hub.repos[TINY.repo]
    weights = published.pop("model.safetensors")
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    published |= dict.fromkeys(names, weights)
    published["model.safetensors.index.json"] = b'{"weight_map": {"a": "%b", "b": "%b"}}' % tuple(
        map(str.encode, names)
    )
    folder = tiny.run(tiny.plan())
    assert tiny.cached() == folder
    (folder / names[1]).unlink()
    assert tiny.cached() is None


@pytest.mark.parametrize(("room", "fits"), [(0, True), (-1, False)])
def test_the_room_on_the_disk_is_checked_before_anything_is_downloaded(
    hub: HubServer, tiny: Download, monkeypatch: pytest.MonkeyPatch, room: int, fits: bool
) -> None:
    size = sum(len(hub.repos[TINY.repo][name]) for name in READ)
    usage = shutil.disk_usage("/")._replace(free=size + room)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if fits:
        assert tiny.plan().missing == size
        return
    with pytest.raises(
        HubError, match=rf"^disk full: org/tiny needs {size:,} bytes and there are {size - 1:,}"
    ) as failed:
        tiny.plan()
    assert failed.value.cause is HubCause.DISK_FULL
    assert bodies(hub) == []


@needs_namespaces
def test_a_full_disk_is_named(hub: HubServer, tmp_path: Path) -> None:
    """On a file system with less room than the model has bytes."""
    home = tmp_path / "home"
    home.mkdir()
    mount = f"mount -t tmpfs -o size=64k tmpfs {home} && exec"
    command = ["unshare", "--mount", "sh", "-c", f'{mount} "$0" "$@"', sys.executable, "-m", "cli", "pull", TINY.repo]
    environment = os.environ | {"HF_HOME": str(home), "HF_ENDPOINT": hub.url, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, "disk full: org/tiny needs 4" in ended.stderr) == (1, True), ended.stderr


def test_two_downloads_at_once_are_safe(hub: HubServer, cache: Path) -> None:
    """In two processes, into one cache."""
    script = (
        "import sys; from pathlib import Path; from workers.hub.download import Download; "
        "from protocol.hub_id import HubId; d = Download(HubId('org/tiny'), sys.argv[1], Path(sys.argv[2])); "
        "d.run(d.plan()); print(d.cached())"
    )
    command = [sys.executable, "-c", script, hub.url, str(cache)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    printed = [process.communicate(timeout=100)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    (model,) = HubCache(cache).read().models
    assert printed == [str(model.path)] * 2
    assert (model.path / "model.safetensors").read_bytes() == hub.repos[TINY.repo]["model.safetensors"]
    assert not list(cache.rglob("*.incomplete"))


def test_a_revision_is_downloaded_beside_others(hub: HubServer, tiny: Download, cache: Path) -> None:
    first = tiny.run(tiny.plan())
    old = hub.commit(TINY.repo)
    pinned = Download(HubId(TINY.repo, old), hub.url, cache)
    assert pinned.cached() == first
    hub.repos[TINY.repo]["config.json"] += b" "
    second = tiny.run(tiny.plan())
    assert (pinned.cached(), tiny.cached()) == (first, second)


@pytest.mark.parametrize(
    ("lacking", "named"), [("config.json", "config.json"), ("model.safetensors", "safetensors file")]
)
def test_a_repository_without_a_checkpoint_is_refused_before_its_download(
    hub: HubServer, tiny: Download, lacking: str, named: str
) -> None:
    del hub.repos[TINY.repo][lacking]
    with pytest.raises(
        HubError, match=f"^no checkpoint: org/tiny has no {named} and no GGUF file at its top level"
    ) as failed:
        tiny.plan()
    assert failed.value.cause is HubCause.NO_CHECKPOINT
    assert bodies(hub) == []


def test_a_cache_that_cannot_be_written_is_named(hub: HubServer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    download = Download(TINY, hub.url, file / "cache")
    with pytest.raises(HubError, match="set HF_HOME to a folder that can be written") as failed:
        download.run(download.plan())
    assert failed.value.cause is HubCause.NOT_WRITABLE
