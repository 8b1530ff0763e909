"""JSON files of a checkpoint, and the error that names the file and the field."""

import json
from pathlib import Path
from typing import Any

from workers.errors import LoadRefused

MAX_JSON_BYTES = 64 << 20
"""Above any real file: the shard index of a very large model has a few MiB."""

A_MODEL = "a model is a directory in Hugging Face layout, with config.json and safetensors"
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


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises `CheckpointError`."""
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(file, "", f"{size} bytes is more than {MAX_JSON_BYTES}")
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = f"; {A_MODEL}" if file.name == "config.json" else ""
        raise CheckpointError(file, "", f"there is no such file{hint}") from None
    except OSError as error:
        raise CheckpointError(file, "", f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, "", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(file, "", "is not a JSON object")
    return value
