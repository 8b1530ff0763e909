"""The JSON and text files of a checkpoint: those of its directory, or what the metadata of a GGUF file says."""

from pathlib import Path
from typing import Any

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.gguf.documents import document
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.json_files import MAX_CONFIG_BYTES, CheckpointError, read_json

CONFIG = "config.json"


def document_file(path: Path, name: str) -> Path:
    """The file to name in an error about a document."""
    return gguf_path(path) or path / name


def read_document(path: Path, name: str, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Read a JSON object of a checkpoint, from a file of at most `most` bytes. Raises `CheckpointError`, also if there
    is none."""
    file = gguf_path(path)
    if file is None:
        return read_json(path / name, most)
    found = document(GgufFile.open(file), name)
    if found is None:
        raise CheckpointError(file, "", f"has nothing in place of {name}")
    return found


def find_document(path: Path, name: str, most: int = MAX_CONFIG_BYTES) -> dict[str, Any] | None:
    """Like `read_document`; None if there is none."""
    file = gguf_path(path)
    if file is not None:
        return document(GgufFile.open(file), name)
    return read_json(path / name, most) if (path / name).exists() else None


def has_tokenizer(path: Path) -> bool:
    """Return whether a checkpoint has a tokenizer. Raises `CheckpointError` for a GGUF file that cannot be read."""
    file = gguf_path(path)
    if file is not None:
        return "tokenizer.ggml.tokens" in GgufFile.open(file).metadata
    return (path / "tokenizer.json").exists()


def read_fields(path: Path) -> Fields:
    """Read the fields of config.json. Raises `CheckpointError`."""
    return Fields(document_file(path, CONFIG), read_document(path, CONFIG))
