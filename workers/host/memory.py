"""Computes the memory that a model needs before it is loaded, and the memory that is free."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from actors.process.cgroups import cgroups
from workers.errors import LoadRefused
from workers.precision import Quantize

GB = 1e9
SHARE = 0.9
"""Default share of the free memory for weights and KV cache; the rest is for temporary buffers."""


class MemoryRefused(LoadRefused):
    """Raised when the model does not fit into the free memory, or its context into the given bytes.

    The text has the need and the settings to change.
    """


@dataclass(frozen=True, slots=True)
class Needed:
    """Bytes that a loaded model holds."""

    weights: int
    kv: int
    """Bytes of all slots, or the limit for all together."""
    slots: int
    context: int
    """Tokens of a slot."""
    states: int = 0
    """Bytes of the recurrent states of all slots."""

    @classmethod
    def of(
        cls,
        weights: int,
        row_bytes: int,
        slots: int,
        context: int,
        kv_bytes: int,
        free: int | None,
        workers: int = 1,
        states: int = 0,
    ) -> "Needed":
        """Compute the need from `row_bytes` per token and slot, with at most `kv_bytes` for the KV cache, and `states`.

        If `kv_bytes` is 0, the KV cache is limited to what remains beside weights and states of this worker's part of
        `SHARE` of the free memory, but at least one context. Pages are allocated when they are written, so all
        `workers` see the same memory as free. Raises `MemoryRefused` if `kv_bytes` hold less than one context.
        """
        bound = kv_bytes
        if kv_bytes:
            rows_of(kv_bytes, row_bytes, context)
        if not kv_bytes and free is not None:
            bound = max(kv_share(free, workers, weights + states), row_bytes * context)
        full = row_bytes * slots * context
        return cls(weights, min(full, bound) if bound else full, slots, context, states)

    @property
    def total(self) -> int:
        """Bytes of weights, KV cache and recurrent states."""
        return self.weights + self.kv + self.states

    def check(self, free: int | None, quantize: Quantize, *, quantizable: bool, leaving: int = 0) -> None:
        """Log the need; raise `MemoryRefused` if the weights exceed `free`, or all exceeds it and what is `leaving`.
        None means that the free memory is unknown.

        `quantizable`: the weights are not quantized yet. `quantize` is what they are quantized to while loading.
        """
        structlog.get_logger().info("memory_needed", weights=self.weights, kv=self.kv, free=free, leaving=leaving)
        if free is None or (self.total <= free + leaving and self.weights <= free):
            return
        changes = []
        if self.weights < free:  # a smaller cache would fit
            changes.append("lower --context, --max-batch-size or --kv-bytes")
        if quantizable and quantize != "int4":
            changes.append("set --quantize int4" if quantize == "int8" else "set --quantize int8 or int4")
        states = f"{self.states / GB:.2f} GB of recurrent states and " if self.states else ""
        raise MemoryRefused(
            f"the model needs {self.total / GB:.2f} GB of memory, {self.weights / GB:.2f} GB of weights and {states}"
            f"{self.kv / GB:.2f} GB of KV cache for {self.slots} slots of {self.context} tokens, and "
            f"{free / GB:.2f} GB are free: {', or '.join(changes) or 'free some, or take a smaller model'}"
        )


def kv_share(free: int, workers: int, weights: int) -> int:
    """Return the bytes that remain for the KV cache of one of `workers`, of `SHARE` of the free memory."""
    return int(SHARE * free) // workers - weights


def rows_of(kv_bytes: int, row_bytes: int, context: int) -> int:
    """Return the cache rows that fit into `kv_bytes`. Raises `MemoryRefused` if they are fewer than one `context`."""
    rows = kv_bytes // max(row_bytes, 1)
    if rows < context:
        raise MemoryRefused(
            f"kv_bytes: {kv_bytes} bytes hold {rows} tokens, fewer than the context of {context}, which takes "
            f"{context * row_bytes}"
        )
    return rows


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without swapping; None if the system does not report it.

    This is the minimum of the machine's available memory and what remains of each cgroup's limit. Pages of files count
    as free, including those of a mapped archive.
    """
    return min([*_available(root), *_left(root)], default=None)


def spare_bytes() -> int:
    """Like `free_bytes`, by the estimate of the system where it is unknown: on macOS it leaves out what is compressed.
    A load is not refused for it."""
    free = free_bytes()
    return int(psutil.virtual_memory().available) if free is None else free


def leaving_bytes(predecessor: int, successor: int) -> int:
    """Return the bytes that will be free when a server has ended: those of its children, such as workers, without pages
    of files, which count as free anyway. 0 when it has ended, or another process has its id: one that began later than
    the server that takes over, the `successor`."""
    if not predecessor:
        return 0
    try:
        server = psutil.Process(predecessor)
        if server.create_time() > psutil.Process(successor).create_time():
            return 0
        return sum(map(_own_bytes, server.children(recursive=True)))
    except psutil.Error:
        return 0


def _own_bytes(process: psutil.Process) -> int:
    """The memory that is free when a process has ended; 0 if it has."""
    try:
        memory = process.memory_info()
        # Only Linux tells the pages of files by this cheap call. The full one knows what no other process has.
        return int(memory.rss - memory.shared if hasattr(memory, "shared") else process.memory_full_info().uss)
    except psutil.Error:
        return 0


def machine_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of memory of the machine, or of a smaller limit of this process's cgroups."""
    return min([int(psutil.virtual_memory().total), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's cgroups."""
    for folder in cgroups("memory", root=root):
        for limit in ("memory.max", "memory.limit_in_bytes"):
            try:
                yield int((folder / limit).read_text())
            except (OSError, ValueError):
                pass  # another cgroup version, or no limit


def _available(root: Path) -> Iterator[int]:
    """Yield MemAvailable of /proc/meminfo, see proc(5)."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _left(root: Path) -> Iterator[int]:
    """Yield what remains of the limits of this process's cgroups. Pages of files do not count as used."""
    for folder in cgroups("memory", root=root):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                bound = int((folder / limit).read_text())  # "max" is not an integer and means no limit
                held = int((folder / used).read_text())
                yield max(0, bound - held + _file_pages(folder))
            except (OSError, ValueError):
                pass  # another cgroup version, or no limit


def _file_pages(folder: Path) -> int:
    stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
