"""Adapters of the hub: what is downloaded, what the cache is enough for, and what is refused."""

from pathlib import Path

import pytest

from protocol.hub_id import HubId
from tests.workers.hub.hub_server import HubServer
from workers.hub import adapter
from workers.hub.adapter import AdapterDownload, resolve_adapter
from workers.hub.errors import HubCause, HubError

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
OTHERS = {"README.md": b"x", "optimizer.pt": b"x", "tokenizer.json": b"{}", "checkpoint-1/adapter_config.json": b"{}"}


@pytest.fixture
def lora(hub: HubServer, cache: Path) -> AdapterDownload:
    hub.repos["org/lora"] = FILES | OTHERS
    return AdapterDownload(HubId("org/lora"), hub.url, cache)


def test_only_the_files_of_an_adapter_are_downloaded_once_and_a_revision_is_kept(
    hub: HubServer, cache: Path, lora: AdapterDownload
) -> None:
    assert lora.cached() is None
    plan = lora.plan()
    assert (plan.size, plan.missing, plan.files) == (9, 9, tuple(FILES))
    path = lora.run(plan)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == FILES
    before = len(hub.requests)
    assert lora.cached() == path
    assert len(hub.requests) == before, "without the network"
    first = hub.commit("org/lora")
    hub.repos["org/lora"] = {"adapter_config.json": b"{}", "adapters.safetensors": b"newer"}
    assert lora.cached() == path, "as for models, the cache is enough"
    newer = lora.run(lora.plan())
    assert newer != path
    assert AdapterDownload(HubId("org/lora", first), hub.url, cache).cached() == path


def test_what_is_missing_or_damaged_in_the_cache_is_downloaded_again(lora: AdapterDownload) -> None:
    path = lora.run(lora.plan())
    (path / "adapter_model.safetensors").resolve().write_bytes(b"w")
    assert lora.cached() is None
    assert lora.run(lora.plan()) == path == lora.cached()
    (path / "adapter_model.safetensors").unlink()
    assert lora.cached() is None
    lora.run(lora.plan())
    assert (path / "adapter_model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("missing", sorted(FILES))
def test_a_repository_without_an_adapter_is_refused(hub: HubServer, lora: AdapterDownload, missing: str) -> None:
    del hub.repos["org/lora"][missing]
    with pytest.raises(HubError, match=r"no checkpoint: org/lora has no adapter_config\.json with") as refused:
        lora.plan()
    assert refused.value.cause is HubCause.NO_CHECKPOINT


def test_more_bytes_than_the_bound_are_refused_before_they_are_downloaded(
    lora: AdapterDownload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "MAX_ADAPTER_BYTES", 8)
    with pytest.raises(HubError, match="the files of the adapter org/lora have 9 bytes, more than 8"):
        lora.plan()
    monkeypatch.setattr(adapter, "MAX_ADAPTER_BYTES", 9)
    assert lora.plan().size == 9


def test_paths_stay_what_they_are_and_hub_ids_are_fetched(
    lora: AdapterDownload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "AdapterDownload", lambda _: lora)
    monkeypatch.chdir(tmp_path)
    for path in ("/none/there", "d", "a/b/c", "../x", "org/lora:Q4"):
        assert resolve_adapter(path) == Path(path).absolute()
    fetched = resolve_adapter("org/lora")
    assert (fetched / "adapter_config.json").is_file()
    (tmp_path / "org/lora").mkdir(parents=True)
    assert resolve_adapter("org/lora") == tmp_path / "org/lora", "a directory comes first"
