"""What a model needs of memory, said before it is loaded, and what this process can still have."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from actors.process.cgroups import cgroups
from workers.errors import LoadRefused
from workers.precision import Quantize

GB = 1e9
SHARE = 0.9
"""Of the free memory, what weights and KV cache may take where nobody says: the rest is for what calls hold."""


class MemoryRefused(LoadRefused):
    """The model does not fit into the memory that is free, or its context not into what it is given; the text says what
    it needs and what to change."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Bytes that a load will hold."""

    weights: int
    kv: int
    """Of all slots, or as much as is allowed for them together."""
    slots: int
    context: int
    """Tokens of a slot."""

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
    ) -> "Needed":
        """`row_bytes` for each token of each slot, at most `kv_bytes`.

        Where that is 0, at most what is left beside the weights of a worker's part of `SHARE` of the free memory, but
        one whole context: pages are taken as they are written to, so what `workers` are free to take looks free to all.
        Raises `MemoryRefused` for `kv_bytes` that hold less than one context.
        """
        bound = kv_bytes
        if kv_bytes:
            rows_of(kv_bytes, row_bytes, context)
        if not kv_bytes and free is not None:
            bound = max(int(SHARE * free) // workers - weights, row_bytes * context)
        full = row_bytes * slots * context
        return cls(weights, min(full, bound) if bound else full, slots, context)

    @property
    def total(self) -> int:
        return self.weights + self.kv

    def check(self, free: int | None, quantize: Quantize, *, quantizable: bool) -> None:
        """Log what is needed; raise `MemoryRefused` when it is more than `free`. None is not known.

        `quantizable` matrices are not of few bits yet, `quantize` says what is made of them.
        """
        structlog.get_logger().info("memory_needed", weights=self.weights, kv=self.kv, free=free)
        if free is None or self.total <= free:
            return
        changes = []
        if self.weights < free:  # the cache can be made to fit
            changes.append("lower --context, --max-batch-size or --kv-bytes")
        if quantizable and quantize != "int4":
            changes.append("set --quantize int4" if quantize == "int8" else "set --quantize int8 or int4")
        raise MemoryRefused(
            f"the model needs {self.total / GB:.2f} GB of memory, {self.weights / GB:.2f} GB of weights and "
            f"{self.kv / GB:.2f} GB of KV cache for {self.slots} slots of {self.context} tokens, and "
            f"{free / GB:.2f} GB are free: {', or '.join(changes) or 'free some, or take a smaller model'}"
        )


def rows_of(kv_bytes: int, row_bytes: int, context: int) -> int:
    """The cache rows that `kv_bytes` pay for. Raises `MemoryRefused` when they are fewer than one `context`."""
    rows = kv_bytes // max(row_bytes, 1)
    if rows < context:
        raise MemoryRefused(
            f"kv_bytes: {kv_bytes} bytes hold {rows} tokens, fewer than the context of {context}, which takes "
            f"{context * row_bytes}"
        )
    return rows


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that may be taken without swapping: the least of what the machine has available and what each cgroup has
    left. Pages of files count as free, a mapped archive's too. None where the system does not say.
    """
    return min([*_available(root), *_left(root)], default=None)


def _available(root: Path) -> Iterator[int]:
    """proc(5), /proc/meminfo."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _left(root: Path) -> Iterator[int]:
    """The limits of this process's cgroups, less what is used, less pages of files, which make way."""
    for folder in cgroups("memory", root=root):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                bound = int((folder / limit).read_text())  # "max" is no number, and no limit
                held = int((folder / used).read_text())
                yield max(0, bound - held + _file_pages(folder))
            except (OSError, ValueError):
                pass  # not this version, or no limit in it


def _file_pages(folder: Path) -> int:
    stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
