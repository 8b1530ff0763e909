"""The NUMA memory policy of the calling thread and of those that it starts (set_mempolicy(2)), and where pages lie.

Python has no such calls, and libnuma is rarely installed; so these are system calls by their numbers. A container
without CAP_SYS_NICE usually forbids them.
"""

import ctypes
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MPOL_PREFERRED, MPOL_INTERLEAVE = 1, 3
MPOL_MF_MOVE = 1 << 1
MAX_NODES = 1024
"""Bits of a node mask (CONFIG_NODES_SHIFT is at most 10)."""
BATCH = 1 << 16
"""Pages of one call."""
STRIPE = 2 << 20
"""Bytes that lie on one node: a huge page stays whole."""
SAMPLE, SKEW = 256, 1.25
"""Pages that are looked at, and the share of one node, over its equal share, that still counts as even."""
_WORD = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Numbers of system calls."""

    mbind: int
    set_mempolicy: int
    move_pages: int


_CALLS = {"x86_64": _Calls(237, 238, 279), "aarch64": _Calls(235, 237, 239)}


def use_memory_of(nodes: Sequence[int]) -> None:
    """Take the memory of this thread from one node as long as it has some, or from several in turn.

    Pages of files that this thread is the first to read count as well. Raises `OSError`.
    """
    mask, size = _mask(nodes)
    _call(_calls().set_mempolicy, _policy(nodes), mask, size)


def move_to(address: int, size: int, nodes: Sequence[int]) -> None:
    """Move pages that only this process has mapped to one node, or to several in turn. Raises `OSError`.

    mbind(2) moves nothing that lies on one of several nodes already; move_pages(2) does, page by page.
    """
    start, end = _pages(address, size)
    if len(nodes) == 1:
        mask, bits = _mask(nodes)
        _call(_calls().mbind, start, end - start, _policy(nodes), mask, bits, MPOL_MF_MOVE)
        return
    page = os.sysconf("SC_PAGE_SIZE")
    for first in range(start, end, BATCH * page):
        pages = range(first, min(first + BATCH * page, end), page)
        targets = [nodes[(each - start) // STRIPE % len(nodes)] for each in pages]
        _move_pages(pages, targets)


def is_spread(address: int, size: int, nodes: Sequence[int]) -> bool:
    """Return whether pages lie on all of these nodes in similar numbers, by a sample. Raises `OSError`."""
    start, end = _pages(address, size)
    page = os.sysconf("SC_PAGE_SIZE")
    found = Counter(nodes_of(range(start, end, max(page, (end - start) // SAMPLE // page * page))))
    return max(found[node] for node in found) * len(nodes) <= SKEW * sum(found.values()) and set(found) == set(nodes)


def nodes_of(addresses: Sequence[int]) -> list[int]:
    """Return the node of the page at each address; a negative error number for one that is not in memory.

    Raises `OSError`.
    """
    return _move_pages(addresses, None)


def _move_pages(addresses: Sequence[int], nodes: Sequence[int] | None) -> list[int]:
    """Move pages, or ask where they are without `nodes`; return the node of each."""
    count = len(addresses)
    pages, found = (ctypes.c_void_p * count)(*addresses), (ctypes.c_int * count)()
    targets = None if nodes is None else (ctypes.c_int * count)(*nodes)
    _call(_calls().move_pages, 0, count, pages, targets, found, 0 if nodes is None else MPOL_MF_MOVE)
    return list(found)


def _policy(nodes: Sequence[int]) -> int:
    return MPOL_PREFERRED if len(nodes) == 1 else MPOL_INTERLEAVE


def _mask(nodes: Iterable[int]) -> tuple["ctypes.Array[ctypes.c_ulong]", int]:
    """Return a node mask, and the number of its bits as these calls take it."""
    mask = (ctypes.c_ulong * (MAX_NODES // _WORD))()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    return mask, MAX_NODES + 1


def _pages(address: int, size: int) -> tuple[int, int]:
    """Return the range of whole pages around a range of bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return address // page * page, -(-(address + size) // page) * page


def _calls() -> _Calls:
    """Raises `OSError` where the numbers are not known."""
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if calls is None:
        raise OSError(f"there are no NUMA calls for {platform.system()} on {platform.machine()}")
    return calls


def _call(number: int, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    values = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if libc.syscall(ctypes.c_long(number), *values) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
