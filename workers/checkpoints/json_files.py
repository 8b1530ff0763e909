"""Bounded reads of a checkpoint's JSON and text files, and the error that names the file and the field."""

import json
from pathlib import Path
from typing import Any

from actors.process.regular_file import FileTooLarge, NotRegularFile, read_regular
from workers.errors import LoadRefused

MAX_CONFIG_BYTES = 8 << 20
"""Above any real config: one that names the quantization of each module has a few hundred KiB."""
MAX_TABLE_BYTES = 64 << 20
"""Above any real tokenizer or shard index: tokenizer.json of a vocabulary of 262,144 tokens has 33 MiB."""

LFS_POINTER = b"version https://git-lfs"
"""Beginning of a file that `git clone` leaves in place of a large one without Git LFS."""
A_MODEL = "a model is a directory in Hugging Face layout, with config.json and safetensors, or a GGUF file"
"""The hint in errors about something else."""


class CheckpointError(LoadRefused):
    """Raised for a checkpoint that cannot be used, before anything is computed. The text names the file and the field
    or tensor."""

    def __init__(self, file: Path | str, field: str, problem: str) -> None:
        self.file = str(file)
        self.field = field
        self.problem = problem
        where = f"{self.file}: {field}" if field else self.file
        super().__init__(f"{where}: {problem}")


def refuse_pointer(file: Path, start: bytes) -> None:
    """Raise `CheckpointError` for a file that starts as a pointer of Git LFS."""
    if start.startswith(LFS_POINTER):
        raise CheckpointError(file, "", "is a pointer of Git LFS in place of the file: `git lfs pull` fetches it")


def read_text(file: Path, most: int) -> str:
    """Read a UTF-8 file of at most `most` bytes.

    What is no regular file, such as a link to a device or a FIFO, is never read from, and the size that the file system
    states is not trusted. Raises `CheckpointError`.
    """
    try:
        content = read_regular(file, most)
    except FileNotFoundError:
        hint = f"; {A_MODEL}" if file.name == "config.json" else ""
        raise CheckpointError(file, "", f"there is no such file{hint}") from None
    except NotRegularFile:
        raise CheckpointError(file, "", "is not a regular file: replace it by one") from None
    except FileTooLarge:
        raise CheckpointError(file, "", f"is larger than the bound of {most} bytes") from None
    except OSError as error:
        raise CheckpointError(file, "", f"cannot be read: {error.strerror}") from error
    refuse_pointer(file, content)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(file, "", f"is not UTF-8: {error}") from error


def read_json(file: Path, most: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file of at most `most` bytes. Raises `CheckpointError`."""
    try:
        value = json.loads(read_text(file, most))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, "", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(file, "", "is not a JSON object")
    return value
