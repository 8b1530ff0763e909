"""The safetensors files of a checkpoint: a single one, or shards with an index."""

from collections.abc import Container
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from actors.process.regular_file import NotRegularFile, open_regular
from workers.checkpoints.json_files import (
    A_MODEL,
    LFS_POINTER,
    MAX_TABLE_BYTES,
    CheckpointError,
    read_json,
    refuse_pointer,
)

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 32 << 20
"""Above any real header: a name, a type, a shape and two offsets for each of 200,000 tensors."""
OTHER_FORMATS = ("*.safetensors", "*.bin*", "*.pt", "*.pth", "*.gguf", "*.npz", "*.h5", "*.msgpack", "*.onnx")
"""Patterns of weight files that are not read, to be named in an error."""


def indexed_names(config: Path) -> Container[str]:
    """Return the names of the tensors by the index beside a config.json; none without an index.

    Raises `CheckpointError` for an index that cannot be read.
    """
    index = config.with_name(INDEX)
    if config.name != "config.json" or not index.exists():
        return ()
    names = read_json(index, MAX_TABLE_BYTES).get("weight_map")
    return names if isinstance(names, dict) else ()


def missing_files(directory: Path) -> list[str]:
    """Return the names of the files without which no checkpoint can be read, and that `directory` does not have.

    Raises `CheckpointError` for an index that cannot be read.
    """
    files = WeightFiles(directory)
    needed = [Path("config.json"), *dict.fromkeys(files.expected().values())]
    return [file.name for file in needed if not (directory / file.name).is_file()]


class WeightFiles:
    """Finds the file of each tensor, and opens files once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opened: dict[str, Any] = {}

    def locate(self) -> dict[str, Path]:
        """Find the file of each tensor, by its name there: a single file, which is preferred, or the shards."""
        where = self.expected()
        if (file := where.get("")) is not None:
            if not file.exists():
                raise CheckpointError(file, "", f"there is no such file{self._instead()}")
            return dict.fromkeys(self.open(file).keys(), file)
        for shard in dict.fromkeys(where.values()):
            unlisted = next((name for name in self.open(shard).keys() if name not in where), None)  # noqa: SIM118
            if unlisted is not None:
                raise CheckpointError(shard, unlisted, f"the tensor is not in the weight_map of {INDEX}")
        return where

    def expected(self) -> dict[str, Path]:
        """The file of each tensor by the index; without one, or beside a single file, that file under an empty name."""
        file, index = self._directory / "model.safetensors", self._directory / INDEX
        return {"": file} if file.exists() or not index.exists() else self._listed(index)

    def _instead(self) -> str:
        """The part of an error about files in other formats."""
        found = sorted({file.name for pattern in OTHER_FORMATS for file in self._directory.glob(pattern)})
        return f", and {found[0]} is in a format or under a name that is not read; {A_MODEL}" if found else ""

    def _listed(self, index: Path) -> dict[str, Path]:
        table = read_json(index, MAX_TABLE_BYTES).get("weight_map")
        if not isinstance(table, dict):
            raise CheckpointError(index, "weight_map", "is missing or not an object")
        where = {}
        for name, shard in table.items():
            # A shard is a file beside its index, never a path to another folder.
            if not isinstance(shard, str) or not shard or Path(shard).name != shard:
                raise CheckpointError(index, f"weight_map.{name}", f"{shard!r} is not a file name")
            where[name] = self._directory / shard
        return where

    def open(self, file: Path) -> Any:
        """Open a file. Raises `CheckpointError` unless it is a safetensors file."""
        if file.name not in self._opened:
            _check_file(file)
            try:
                self._opened[file.name] = safe_open(str(file), framework="numpy")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(file, "", f"is not a safetensors file: {error}; download it again") from error
        return self._opened[file.name]


def _check_file(file: Path) -> None:
    """Raise `CheckpointError` for what is no regular file, for a pointer of Git LFS, and for a header that is too
    long to be one."""
    try:
        with open_regular(file) as stream:
            start = stream.read(len(LFS_POINTER))
    except NotRegularFile:
        raise CheckpointError(file, "", "is not a regular file: replace it by one") from None
    except FileNotFoundError:
        raise CheckpointError(file, "", "there is no such file") from None
    except OSError as error:
        raise CheckpointError(file, "", f"cannot be read: {error.strerror}") from error
    refuse_pointer(file, start)
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER_BYTES:
        problem = f"a header of {length} bytes is over the bound of {MAX_HEADER_BYTES}"
        raise CheckpointError(file, "", f"is not a safetensors file: {problem}")
