"""Reading a checkpoint's JSON files, and the error that names what is wrong in one."""

import json
from pathlib import Path
from typing import Any

from workers.errors import LoadRefused

MAX_JSON_BYTES = 64 << 20
"""A shard index of a very large model is a few MiB; anything above this is not a model's description."""

A_MODEL = "a model is a directory in Hugging Face layout, with config.json and safetensors"
"""For those who gave something else."""


class CheckpointError(LoadRefused):
    """A checkpoint cannot be used: the file, the field or tensor, and why. Raised before anything is computed."""

    def __init__(self, file: Path | str, field: str, problem: str) -> None:
        self.file = str(file)
        self.field = field
        self.problem = problem
        where = f"{self.file}: {field}" if field else self.file
        super().__init__(f"{where}: {problem}")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file, or `CheckpointError`."""
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
