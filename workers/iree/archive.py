"""The model's weights as the device wants them: packed once into one file that is kept on disk.

The file is mapped, not read: graphs and processes share its pages, and no second copy of the weights is made. It is
written tensor by tensor, in the safetensors format, with gaps so that each tensor can be used where it is mapped.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import iree.runtime as rt
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.checkpoint import ModelConfig, Weights, config_digest, open_weights
from workers.iree.model import Parameter, parameters
from workers.iree.ops import Ops, Shape

FORMAT = 3
"""Raise it when the contents of an archive change for the same key."""
ALIGNMENT = 64
"""Bytes; IREE computes in place on host memory only where it is aligned so."""

_NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
Progress = Callable[[str, int, int], None]


class ArchiveError(Exception):
    """The packed weights cannot be kept on disk; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor lies in the file."""

    header: bytes
    """The file's beginning: a length and the JSON that names the tensors."""
    offsets: tuple[int, ...]
    """Of each tensor, from the start of the file."""
    size: int
    """Of the file."""

    @classmethod
    def of(cls, wanted: Sequence[Parameter], ops: Ops) -> "Layout":
        table, starts, end = {}, [], 0
        for parameter in wanted:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            size = int(np.prod(stored_shape(parameter, ops))) * np.dtype(_NUMPY[parameter.dtype]).itemsize
            end = start + size
            starts.append(start)
            # As bytes: the graphs say what they are.
            table[parameter.name] = {"dtype": "U8", "shape": [size], "data_offsets": [start, end]}
        text = json.dumps(table).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        return cls(header, tuple(len(header) + start for start in starts), len(header) + end)


def stored_shape(parameter: Parameter, ops: Ops) -> Shape:
    """The parameter's shape in the archive."""
    tail = parameter.sources[0][1][1:]
    return ops.stored_shape(parameter.rows, *tail) if parameter.matrix else (parameter.rows, *tail)


def open_archive(
    path: Path, config: ModelConfig, ops: Ops, cache_dir: Path, progress: Progress
) -> tuple[rt.ParameterIndex, int]:
    """The parameters of the checkpoint at `path`, and their bytes; made on first use, then found in `cache_dir`.

    Raises `CheckpointError` for tensors that are missing or have another shape than config.json says, `ArchiveError`
    when there is no room or no permission.
    """
    folder = cache_dir / "weights"
    file = folder / f"{_digest(path, ops)}.safetensors"
    wanted = parameters(config, ops.dtype)
    layout = Layout.of(wanted, ops)
    if not _whole(file, layout):  # one that is may be on a disk that cannot be written
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with file.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _whole(file, layout):
                    _write(file, layout, wanted, open_weights(path), ops, progress)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ArchiveError(f"{folder}: cannot keep {layout.size} bytes of packed weights: {reason}") from error
    index = rt.ParameterIndex()
    index.load(str(file), "safetensors")
    return index, layout.size


def _digest(path: Path, ops: Ops) -> str:
    """Of the checkpoint's content and of the layout. Times count too: they tell weights that were trained on."""
    stamps = [(file.name, file.stat().st_mtime_ns) for file in sorted(path.glob("*.safetensors"))]
    layout = [ops.dtype, ops.stored_shape(64, 64)]
    parts = [FORMAT, config_digest(path), stamps, layout]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _whole(file: Path, layout: Layout) -> bool:
    """The file is there at its full length: it came whole under its name, but may have been cut since."""
    try:
        return file.stat().st_size == layout.size
    except OSError:
        return False


def _write(
    file: Path, layout: Layout, wanted: Sequence[Parameter], weights: Weights, ops: Ops, progress: Progress
) -> None:
    """Write beside the file and rename; the caller holds the lock."""
    for left in file.parent.glob(f"{file.stem}*.tmp"):  # of a process that died while it wrote
        left.unlink(missing_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=file.stem, suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            _pack(out, layout, wanted, weights, ops, progress)
            # A file that is renamed before its pages are on the disk is full of zeros after a power failure.
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _pack(
    out: BinaryIO, layout: Layout, wanted: Sequence[Parameter], weights: Weights, ops: Ops, progress: Progress
) -> None:
    """One tensor after the other, so that one at a time is in memory."""
    out.write(layout.header)
    for done, (parameter, offset) in enumerate(zip(wanted, layout.offsets, strict=True)):
        progress("pack weights", done, len(wanted))
        out.seek(offset)
        out.write(np.ascontiguousarray(_build(parameter, weights, ops)).view(np.uint8).data)
    progress("pack weights", len(wanted), len(wanted))


def _build(parameter: Parameter, weights: Weights, ops: Ops) -> NDArray[Any]:
    parts = [weights.take(name, shape) for name, shape in parameter.sources]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    whole = whole.astype(_NUMPY[parameter.dtype], copy=False)
    if parameter.offset:
        whole = whole + whole.dtype.type(parameter.offset)
    return ops.store(whole) if parameter.matrix else whole


def as_arrays(config: ModelConfig, ops: Ops) -> Mapping[str, tuple[Shape, str]]:
    """Name -> (stored shape, dtype) of every parameter."""
    return {p.name: (stored_shape(p, ops), p.dtype) for p in parameters(config, ops.dtype)}
