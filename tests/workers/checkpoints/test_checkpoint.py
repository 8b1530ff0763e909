"""Finding a checkpoint, and its digest."""

from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import CheckpointError, config_digest, resolve_model


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path / "a", seed=1)
    same = make_checkpoint(tmp_path / "b", seed=1)
    other = make_checkpoint(tmp_path / "c", seed=2)
    assert config_digest(first) == config_digest(same)
    assert config_digest(first) != config_digest(other)


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.999])
def test_digest_tells_a_model_of_which_one_matrix_was_trained_further(tmp_path: Path, place: float) -> None:
    """Samples find a change anywhere: the graph cache and failover take equal digests for equal models."""
    file = tmp_path / "model.safetensors"
    values = bytearray(8 << 20)
    file.write_bytes(values)
    before = config_digest(tmp_path)
    start, length = int(place * (7 << 20)), 1 << 16
    values[start : start + length] = b"1" * length
    file.write_bytes(values)
    assert config_digest(tmp_path) != before


def test_local_model_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "/no/such/model", "a/b/c", "~/none", ""])
def test_what_is_neither_directory_nor_hub_id(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such directory, and it is not a hub id"):
        resolve_model(name)


def test_a_file_is_not_sought_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(CheckpointError, match=r"models/model\.gguf: is a GGUF file, which .* a model is a directory"):
        resolve_model("models/model.gguf")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is a file; a model is a directory"):
        resolve_model("model.safetensors")


def test_hub_failure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("Network is unreachable\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match=r"some/model: is not a local directory .*Network is unreachable$"):
        resolve_model("some/model")


def test_hub_model_resolves_to_its_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = ["config.json", "model-1.safetensors", "tokenizer.json", "chat_template.jinja"]
    there += ["consolidated.safetensors", "original/params.json", "onnx/model.onnx", "pytorch_model.bin"]
    asked: list[str] = []
    wanted: set[str] = set()

    def download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append(name)
        wanted.update(filter_repo_objects(there, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model("some/model") == tmp_path
    assert asked == ["some/model"]
    assert wanted == set(there[:4])
