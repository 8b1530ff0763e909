"""The model's weights as the device wants them: packed once into one file that is kept on disk.

The file is mapped, not read: graphs and processes share its pages, and no second copy of the weights is made. It is
written tensor by tensor, in the safetensors format, with gaps so that each tensor can be used where it is mapped.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import iree.runtime as rt
import numpy as np
import structlog

from workers.checkpoints.checkpoint import Weights, config_digest
from workers.errors import LoadRefused
from workers.iree.model.ops import Ops
from workers.iree.model.stored_parameters import Stored, build
from workers.load_options import Progress

FORMAT = 3
"""Raise it when the contents of an archive change for the same key."""
MAX_BYTES = 64 << 30
"""Of all archives in a cache folder together."""
ALIGNMENT = 64
"""Bytes; IREE computes in place on host memory only where it is aligned so."""


class ArchiveError(LoadRefused):
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


class Archive:
    """Packed weights on the disk. While one is open no process removes its file."""

    def __init__(self, file: Path, nbytes: int, lock: IO[str] | None) -> None:
        self.nbytes = nbytes
        self.index = rt.ParameterIndex()
        self.index.load(str(file), "safetensors")
        self._lock = lock

    def close(self) -> None:
        """The file may go from now on; what is mapped of it stays readable."""
        if self._lock is not None:
            self._lock.close()


def open_archive(
    weights: Weights,
    wanted: Sequence[Stored],
    ops: Ops,
    cache_dir: Path,
    progress: Progress,
    max_bytes: int = MAX_BYTES,
) -> Archive:
    """The parameters of a checkpoint as `wanted`; made on first use, then found in `cache_dir`.

    A new archive makes room: those used least recently go until all are `max_bytes` together, except those that are
    open and the new one. Raises `CheckpointError` for tensors that are missing or have another shape than config.json
    says, `ArchiveError` when there is no room or no permission.
    """
    folder = cache_dir / "weights"
    file = folder / f"{_digest(weights.directory, wanted)}.safetensors"
    layout = Layout.of(wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = file.with_suffix(".lock").open("w")
    except OSError as error:
        if not _whole(file, layout):
            raise _cannot_keep(folder, layout, error) from error
        return Archive(file, layout.size, None)  # found on a disk that cannot be written, where nothing is removed
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not _whole(file, layout):  # what another process made it may remove before it is locked here
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _whole(file, layout):
                _write(file, layout, wanted, weights, ops, progress)
                _make_room_if_allowed(folder, file, max_bytes)
            fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):  # another user's: it is in use all the same
            os.utime(file)
        return Archive(file, layout.size, lock)
    except OSError as error:
        lock.close()
        raise _cannot_keep(folder, layout, error) from error
    except BaseException:
        lock.close()
        raise


def _cannot_keep(folder: Path, layout: Layout, error: OSError) -> ArchiveError:
    problem = f"cannot keep {layout.size} bytes of packed weights: {error.strerror or error}"
    return ArchiveError(f"{folder}: {problem}; free some space or set --cache-dir")


def _make_room_if_allowed(folder: Path, kept: Path, max_bytes: int) -> None:
    """What another user keeps here, or another process has just removed, costs room and not this load."""
    try:
        _make_room(folder, kept, max_bytes)
    except OSError as error:
        structlog.get_logger().warning("archives_not_removed", folder=str(folder), reason=str(error))


def _make_room(folder: Path, kept: Path, max_bytes: int) -> None:
    """Remove the archives used least recently until all are `max_bytes` together.

    Their empty locks stay: a process may be about to lock one, and must not find itself with another file than the
    next process.
    """
    files = sorted(((file, file.stat()) for file in folder.glob("*.safetensors")), key=lambda each: each[1].st_mtime)
    total = sum(stat.st_size for _, stat in files)
    for file, stat in files:
        if total <= max_bytes:
            return
        if file == kept:
            continue
        with file.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # in use
            file.unlink(missing_ok=True)
            total -= stat.st_size


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
