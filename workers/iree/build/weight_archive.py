"""The weight archive: a model's weights as the device reads them, packed once into one file on disk.

The file is mapped, not read: graphs and processes share its pages, and no second copy of the weights is made. It is
written tensor by tensor, in the safetensors format, with gaps so that each tensor can be used where it is mapped.
"""

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import structlog
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import Weights
from workers.errors import LoadRefused
from workers.host.cpu_plan import WorkerCpus
from workers.iree.build.weight_memory import HugeWriter, copy_weights, index_of, map_weights
from workers.iree.model.ops import Ops
from workers.iree.model.stored_parameters import Stored, pack_parameter
from workers.load_options import Progress

FORMAT = 3
"""The version of the contents, to be raised when they change for the same key."""
QUANTIZED_FORMAT = 4
"""The same of archives with quantized matrices."""
MAX_BYTES = 64 << 30
"""The limit for all archives in a cache folder together."""
PACKED_AT_ONCE = 4
"""Tensors that are packed or written at a time."""
PACKED_BYTES = 256 << 20
"""The limit for their packed size together, unless one alone is larger."""
ALIGNMENT = 64
"""Bytes; IREE computes in place on host memory only where it is aligned so."""


class ArchiveError(LoadRefused):
    """Raised when the packed weights cannot be kept on disk; the text says where and why."""


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The place of an archive on the disk and in memory."""

    cache_dir: Path
    """The cache folder."""
    copy: str = ""
    """The name of a copy on the disk; empty for the first one."""
    nodes: tuple[int, ...] = ()
    """NUMA nodes whose memory the file is mapped in; empty to leave that to the kernel."""
    mapped: bool = True
    """Map the file. False copies it into memory of this process."""

    @classmethod
    def of(cls, cache_dir: Path, cpus: WorkerCpus, mapped: bool) -> "ArchivePlace":
        """Return the place of the archive of a worker on these CPUs."""
        return cls(cache_dir, cpus.copy, cpus.nodes, mapped)

    def open(self, file: Path) -> mmap.mmap:
        return map_weights(file, self.nodes) if self.mapped else copy_weights(file)


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of each tensor in the file."""

    header: bytes
    """The beginning of the file: a length, and the JSON that names the tensors."""
    offsets: tuple[int, ...]
    """The offset of each tensor from the start of the file."""
    size: int
    """The size of the file."""

    @classmethod
    def of(cls, wanted: Sequence[Stored]) -> "Layout":
        table, starts, end = {}, [], 0
        for stored in wanted:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + stored.nbytes
            starts.append(start)
            # As bytes: the graphs know the types.
            table[stored.name] = {"dtype": "U8", "shape": [stored.nbytes], "data_offsets": [start, end]}
        text = json.dumps(table).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        return cls(header, tuple(len(header) + start for start in starts), len(header) + end)


class Archive:
    """Packed weights on the disk. While one is open no process removes its file."""

    def __init__(self, memory: mmap.mmap, nbytes: int, lock: IO[str] | None) -> None:
        """`memory` has the file's contents."""
        self.nbytes = nbytes
        self.index = index_of(memory, nbytes)
        self._lock = lock

    def close(self) -> None:
        """Allow other processes to remove the file; what is mapped of it stays readable."""
        if self._lock is not None:
            self._lock.close()


def open_archive(
    weights: Weights,
    digest: str,
    wanted: Sequence[Stored],
    ops: Ops,
    place: ArchivePlace,
    progress: Progress,
    max_bytes: int = MAX_BYTES,
) -> Archive:
    """Open the parameters of a checkpoint as `wanted`; they are packed on first use, then found in the cache folder.
    `digest` is the checkpoint's, of `config_digest`.

    A new archive makes room: the least recently used ones are removed until all are `max_bytes` together, except those
    that are open and the new one. Raises `CheckpointError` for tensors that are missing or whose shape does not follow
    from config.json, `ArchiveError` when there is no room or no permission.
    """
    folder = place.cache_dir / "weights"
    name = _digest(weights.files, digest, wanted) + (f"-{place.copy}" if place.copy else "")
    file = folder / f"{name}.safetensors"
    layout = Layout.of(wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = file.with_suffix(".lock").open("w")
    except OSError as error:
        if not _whole(file, layout):
            raise _cannot_keep(folder, layout, error) from error
        return Archive(place.open(file), layout.size, None)  # on a read-only disk, where nothing is removed
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while not _whole(file, layout):  # another process that made it may remove it before the lock is taken
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _whole(file, layout):
                _write(file, layout, wanted, weights, ops, progress)
                _make_room_if_allowed(folder, file, max_bytes)
            fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):  # another user's file
            os.utime(file)
        return Archive(place.open(file), layout.size, lock)
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
    """Make room, and warn where that fails: for another user's archives, or one that has just been removed."""
    try:
        _make_room(folder, kept, max_bytes)
    except OSError as error:
        structlog.get_logger().warning("archives_not_removed", folder=str(folder), reason=str(error))


def _make_room(folder: Path, kept: Path, max_bytes: int) -> None:
    """Remove the least recently used archives until all are `max_bytes` together.

    Their empty lock files stay: a process may be about to lock one, and the next one must lock the same file.
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


def _digest(files: Sequence[Path], model: str, wanted: Sequence[Stored]) -> str:
    """Return the digest of the checkpoint and the layout. Times of files tell weights that were trained further."""
    stamps = [(file.name, file.stat().st_mtime_ns) for file in files]
    layout = [(stored.name, stored.shape, stored.dtype, repr(stored.packing)) for stored in wanted]
    version = QUANTIZED_FORMAT if any(stored.packing is not None for stored in wanted) else FORMAT
    parts = [version, model, stamps, layout]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _whole(file: Path, layout: Layout) -> bool:
    """Return whether the file has its full length: it was renamed whole, but may have been truncated since."""
    try:
        return file.stat().st_size == layout.size
    except OSError:
        return False


def _write(
    file: Path, layout: Layout, wanted: Sequence[Stored], weights: Weights, ops: Ops, progress: Progress
) -> None:
    """Write beside the file and rename; the caller holds the lock."""
    for left in file.parent.glob(f"{file.stem}.*.tmp"):  # of a process that died while it wrote
        left.unlink(missing_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f"{file.stem}.", suffix=".tmp", dir=file.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as out:
            _pack(out, layout, wanted, weights, ops, progress)
            # A file that is renamed before its pages are on the disk is full of zeros after a power failure.
            os.fsync(out.fileno())
        os.replace(temporary, file)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _pack(
    out: BinaryIO, layout: Layout, wanted: Sequence[Stored], weights: Weights, ops: Ops, progress: Progress
) -> None:
    """Write one tensor after the other, while threads pack the next ones."""
    writer = HugeWriter(out)
    writer.write_at(0, memoryview(layout.header))
    with ThreadPoolExecutor(PACKED_AT_ONCE, "pack") as pool:
        arrays = _packed_ahead(pool, wanted, weights, ops)
        for done, (array, offset) in enumerate(zip(arrays, layout.offsets, strict=True)):
            progress("pack weights", done, len(wanted))
            writer.write_at(offset, array.reshape(-1).view(np.uint8).data)
    writer.flush()
    progress("pack weights", len(wanted), len(wanted))


def _packed_ahead(
    pool: Executor, wanted: Sequence[Stored], weights: Weights, ops: Ops
) -> Iterator[NDArray[np.generic]]:
    """Yield the packed tensors in their order. The next ones are packed meanwhile, `PACKED_AT_ONCE` in all and no more
    bytes than `PACKED_BYTES`, but always one."""
    packing: deque[tuple[int, Future[NDArray[np.generic]]]] = deque()
    for stored in wanted:
        while packing and (
            len(packing) == PACKED_AT_ONCE or sum(size for size, _ in packing) + stored.nbytes > PACKED_BYTES
        ):
            yield packing.popleft()[1].result()
        packing.append((stored.nbytes, pool.submit(_pack_one, stored, weights, ops)))
    while packing:
        yield packing.popleft()[1].result()


def _pack_one(stored: Stored, weights: Weights, ops: Ops) -> NDArray[np.generic]:
    return np.ascontiguousarray(pack_parameter(stored, weights, ops))
