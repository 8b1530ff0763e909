"""The model's weights as the device wants them: packed once into one file that is kept on disk.

The file is mapped, not read: graphs and processes share its pages, and no second copy of the weights is made. It is
written tensor by tensor, in the safetensors format, with gaps so that each tensor can be used where it is mapped.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import iree.runtime as rt
import numpy as np

from workers.checkpoint import Weights, config_digest
from workers.iree.ops import Ops
from workers.iree.storage import Stored, build

FORMAT = 3
"""Raise it when the contents of an archive change for the same key."""
ALIGNMENT = 64
"""Bytes; IREE computes in place on host memory only where it is aligned so."""

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
    def of(cls, wanted: Sequence[Stored]) -> "Layout":
        table, starts, end = {}, [], 0
        for stored in wanted:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + stored.nbytes
            starts.append(start)
            # As bytes: the graphs say what they are.
            table[stored.name] = {"dtype": "U8", "shape": [stored.nbytes], "data_offsets": [start, end]}
        text = json.dumps(table).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        return cls(header, tuple(len(header) + start for start in starts), len(header) + end)


def open_archive(
    weights: Weights, wanted: Sequence[Stored], ops: Ops, cache_dir: Path, progress: Progress
) -> tuple[rt.ParameterIndex, int]:
    """The parameters of a checkpoint as `wanted`, and their bytes; made on first use, then found in `cache_dir`.

    Raises `CheckpointError` for tensors that are missing or have another shape than config.json says, `ArchiveError`
    when there is no room or no permission.
    """
    folder = cache_dir / "weights"
    file = folder / f"{_digest(weights.directory, wanted)}.safetensors"
    layout = Layout.of(wanted)
    if not _whole(file, layout):  # one that is may be on a disk that cannot be written
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with file.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _whole(file, layout):
                    _write(file, layout, wanted, weights, ops, progress)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ArchiveError(f"{folder}: cannot keep {layout.size} bytes of packed weights: {reason}") from error
    index = rt.ParameterIndex()
    index.load(str(file), "safetensors")
    return index, layout.size


def _digest(path: Path, wanted: Sequence[Stored]) -> str:
    """Of the checkpoint's content and of the layout. Times count too: they tell weights that were trained on."""
    stamps = [(file.name, file.stat().st_mtime_ns) for file in sorted(path.glob("*.safetensors"))]
    layout = [(stored.name, stored.shape, stored.dtype, repr(stored.packing)) for stored in wanted]
    parts = [FORMAT, config_digest(path), stamps, layout]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _whole(file: Path, layout: Layout) -> bool:
    """The file is there at its full length: it came whole under its name, but may have been cut since."""
    try:
        return file.stat().st_size == layout.size
    except OSError:
        return False


def _write(
    file: Path, layout: Layout, wanted: Sequence[Stored], weights: Weights, ops: Ops, progress: Progress
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
    out: BinaryIO, layout: Layout, wanted: Sequence[Stored], weights: Weights, ops: Ops, progress: Progress
) -> None:
    """One tensor after the other, so that one at a time is in memory."""
    out.write(layout.header)
    for done, (stored, offset) in enumerate(zip(wanted, layout.offsets, strict=True)):
        progress("pack weights", done, len(wanted))
        out.seek(offset)
        out.write(np.ascontiguousarray(build(stored, weights, ops)).view(np.uint8).data)
    progress("pack weights", len(wanted), len(wanted))
