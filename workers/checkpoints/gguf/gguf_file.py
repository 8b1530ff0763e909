"""A model in GGUF files, one or several shards: its metadata and where each of its tensors is."""

import functools
import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.process.regular_file import NotRegularFile, open_regular
from workers.checkpoints.gguf.metadata import MAX_KEY, Cursor
from workers.checkpoints.gguf.tensor_types import TYPES, TensorType
from workers.checkpoints.json_files import LFS_POINTER, CheckpointError, refuse_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_SHARDS = 4096
MAX_DIMENSIONS = 4
MAX_SIZE = 1 << 40
"""Above any real number of elements of a tensor."""
ALIGNMENT = 32
"""Bytes to which tensors are aligned, unless `general.alignment` says otherwise."""
MAX_ALIGNMENT = 1 << 16
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII)
"""The name of a shard."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of one tensor."""

    file: Path
    name: str
    type: TensorType
    shape: tuple[int, ...]
    """With the inputs last, as in safetensors; ggml has them first."""
    offset: int
    """Bytes from the start of the file."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.type.block * self.type.size


class GgufShard:
    """One file, which stays mapped."""

    def __init__(self, file: Path) -> None:
        """Raises `CheckpointError`."""
        self.file = file
        self._map = _map(file)
        cursor = Cursor(file, memoryview(self._map))
        refuse_pointer(file, self._map[: len(LFS_POINTER)])
        keys, tensors = _counts(cursor)
        self.metadata: Mapping[str, Any] = _metadata(cursor, keys)
        self.tensors: Mapping[str, TensorPlace] = _tensors(cursor, tensors, self.metadata, len(self._map))
        self.header_bytes = cursor.at

    def blocks(self, tensor: TensorPlace, first: int = 0, count: int | None = None) -> NDArray[np.uint8]:
        """The bytes of `count` blocks from `first` on, or of all: uint8 [blocks, bytes of a block], mapped."""
        size = tensor.type.size
        count = tensor.nbytes // size - first if count is None else count
        return np.frombuffer(self._map, np.uint8, count * size, tensor.offset + first * size).reshape(count, size)

    def header(self) -> bytes:
        """Everything before the tensors' values."""
        return self._map[: self.header_bytes]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A model: the metadata of its first file, and the tensors of all."""

    path: Path
    shards: Mapping[Path, GgufShard]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Open a model by its only or first file, unless it was opened before and is unchanged. Raises
        `CheckpointError`."""
        files = shard_files(path)
        try:
            stats = [file.stat() for file in files]
        except FileNotFoundError as error:
            raise CheckpointError(str(error.filename), "", "there is no such file") from None
        except OSError as error:
            raise CheckpointError(str(error.filename), "", f"cannot be read: {error.strerror}") from error
        stamps = tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)
        return _open(path, tuple(files), stamps)

    def error(self, field: str, problem: str) -> CheckpointError:
        return CheckpointError(self.path, field, problem)

    def blocks(self, tensor: TensorPlace, first: int = 0, count: int | None = None) -> NDArray[np.uint8]:
        """See `GgufShard.blocks`."""
        return self.shards[tensor.file].blocks(tensor, first, count)


@functools.lru_cache(maxsize=4)  # a load reads the description of a model and of its draft model many times
def _open(path: Path, files: tuple[Path, ...], stamps: tuple[object, ...]) -> GgufFile:
    shards = {file: GgufShard(file) for file in files}
    first = shards[files[0]]
    tensors: dict[str, TensorPlace] = {}
    for number, shard in enumerate(shards.values()):
        _check_shard(shard, number, len(files))
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise CheckpointError(shard.file, name, f"the tensor is in {tensors[name].file.name}, too")
            tensors[name] = tensor
    stated = first.metadata.get("split.tensors.count", len(tensors))
    if len(files) > 1 and stated != len(tensors):
        problem = f"says {stated!r} tensors, and the {len(files)} files have {len(tensors)}"
        raise CheckpointError(path, "split.tensors.count", problem)
    return GgufFile(path, shards, first.metadata, tensors)


def shard_files(path: Path) -> list[Path]:
    """The files of a model by its only or any file. Raises `CheckpointError` for a name that is no shard's."""
    match = SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    if not 0 < int(match[2]) <= count <= MAX_SHARDS:
        raise CheckpointError(path, "", f"is not one of 1 to {MAX_SHARDS} shards by its name")
    return [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf") for number in range(1, count + 1)]


def _map(file: Path) -> mmap.mmap:
    try:
        with open_regular(file) as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except NotRegularFile:
        raise CheckpointError(file, "", "is not a regular file: replace it by one") from None
    except FileNotFoundError:
        raise CheckpointError(file, "", "there is no such file") from None
    except ValueError:  # of an empty file
        raise CheckpointError(file, "", "is empty, and not a GGUF file") from None
    except OSError as error:
        raise CheckpointError(file, "", f"cannot be read: {error.strerror}") from error


def _counts(cursor: Cursor) -> tuple[int, int]:
    """Read the numbers of keys and of tensors."""
    if bytes(cursor.bytes(4, "magic")) != MAGIC:
        raise cursor.error("magic", "is not a GGUF file")
    version = cursor.u32("version")
    if version & 0xFFFF == 0:
        raise cursor.error("version", "the file is big-endian, which is not supported")
    if version not in VERSIONS:
        raise cursor.error("version", f"{version} is not supported, only {' and '.join(map(str, VERSIONS))}")
    tensors, keys = cursor.u64("tensor_count"), cursor.u64("metadata_kv_count")
    for field, count, most in (("tensor_count", tensors, MAX_TENSORS), ("metadata_kv_count", keys, MAX_KEYS)):
        if count > most:
            raise cursor.error(field, f"{count} is over the bound of {most}")
    return keys, tensors


def _metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in range(count):
        key = cursor.string(f"key {number}", MAX_KEY)
        if key in found:
            raise cursor.error(key[:256], "is there twice")
        found[key] = cursor.value(key[:256])
    return found


def _tensors(cursor: Cursor, count: int, metadata: Mapping[str, Any], size: int) -> dict[str, TensorPlace]:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error("general.alignment", f"{alignment!r} is not a power of two up to {MAX_ALIGNMENT}")
    found = {}
    for number in range(count):
        tensor = _tensor(cursor, number)
        if tensor.name in found:
            raise cursor.error(tensor.name, "the tensor is there twice")
        if tensor.offset % alignment:
            raise cursor.error(tensor.name, f"the offset {tensor.offset} is not a multiple of {alignment}")
        found[tensor.name] = tensor
    start = -(-cursor.at // alignment) * alignment
    return _placed(cursor, found, start, size)


def _placed(cursor: Cursor, found: Mapping[str, TensorPlace], start: int, size: int) -> dict[str, TensorPlace]:
    """Return the tensors with their places in the file, none of which may overlap or pass the end."""
    placed, end, before = {}, start, ""
    for tensor in sorted(found.values(), key=lambda tensor: tensor.offset):
        at = start + tensor.offset
        if at < end:
            raise cursor.error(tensor.name, f"the tensor overlaps {before}")
        end, before = at + tensor.nbytes, tensor.name
        if end > size:
            raise cursor.error(tensor.name, f"the tensor ends at byte {end} of a file of {size}: is it complete?")
        placed[tensor.name] = TensorPlace(cursor.file, tensor.name, tensor.type, tensor.shape, at)
    return placed


def _tensor(cursor: Cursor, number: int) -> TensorPlace:
    name = cursor.string(f"tensor {number}", MAX_KEY)[:256]
    dimensions = cursor.u32(name)
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise cursor.error(name, f"{dimensions} dimensions are not 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(name) for _ in range(dimensions))[::-1]
    kind, offset = cursor.u32(name), cursor.u64(name)
    if kind not in TYPES:
        names = ", ".join(sorted(each.name for each in TYPES.values()))
        raise cursor.error(name, f"the tensor type {kind} is not supported, only {names}")
    if 0 in shape or math.prod(shape) > MAX_SIZE:
        raise cursor.error(name, f"the shape {shape} has no elements, or more than {MAX_SIZE}")
    if shape[-1] % TYPES[kind].block:
        raise cursor.error(
            name, f"{shape[-1]} inputs are not whole blocks of {TYPES[kind].block} of {TYPES[kind].name}"
        )
    return TensorPlace(cursor.file, name, TYPES[kind], shape, offset)


def _check_shard(shard: GgufShard, number: int, count: int) -> None:
    stated, own = shard.metadata.get("split.count", 1), shard.metadata.get("split.no", 0)
    if stated not in (count, 0 if count == 1 else count):
        raise CheckpointError(shard.file, "split.count", f"is {stated!r}, and the name says {count}: keep the names")
    if own != number:
        raise CheckpointError(shard.file, "split.no", f"is {own!r}, and the name says {number}: keep the names")
