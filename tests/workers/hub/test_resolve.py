"""The directory of a model that a user names."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.workers.hub.conftest import TINY
from tests.workers.hub.hub_server import HubServer, hub_error
from workers.checkpoints.checkpoint import CheckpointError
from workers.hub.errors import HubCause, HubError
from workers.hub.resolve import resolve_model


@pytest.fixture
def own_hub(hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The hub and the cache that variables would name."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return hub


def test_a_local_model_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "name", ["./nowhere", "nowhere", "nowhere.gguf", "/no/such/model", "a/b/c", "~/none", "", "a/b@"]
)
def test_what_is_neither_directory_nor_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such directory or GGUF file, and it is not a hub id"):
        resolve_model(name)


def test_the_folder_of_an_unknown_user() -> None:
    with pytest.raises(CheckpointError, match=r"^~no-such-user/model: there is no such user"):
        resolve_model("~no-such-user/model")


def test_a_file_is_not_sought_on_the_hub(own_hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("models/model.gguf") == Path("models/model.gguf")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is a file; a model is a directory"):
        resolve_model("model.safetensors")
    assert own_hub.requests == []


def test_a_hub_model_is_downloaded_and_then_found_without_the_hub(own_hub: HubServer, cache: Path) -> None:
    folder = resolve_model("org/tiny")
    assert folder.is_relative_to(cache)
    assert {file.name for file in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    own_hub.failure = hub_error(503)
    own_hub.requests.clear()
    assert resolve_model("org/tiny") == folder
    assert resolve_model(f"org/tiny@{folder.name}") == folder
    assert own_hub.requests == []


def test_a_hub_failure_is_a_sentence_with_its_cause(own_hub: HubServer) -> None:
    with pytest.raises(HubError, match=r"^not found: .* has no model org/other") as failed:
        resolve_model("org/other")
    assert failed.value.cause is HubCause.NOT_FOUND
    assert TINY.repo in own_hub.repos
