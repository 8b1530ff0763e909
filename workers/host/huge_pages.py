"""Huge pages for weights: fewer address translations while a step streams through all of them.

See the kernel's documentation on transparent huge pages and hugetlb, Documentation/admin-guide/mm. Only Linux has them.
"""

import contextlib
import mmap
import sys
from dataclasses import dataclass
from pathlib import Path

from actors.process.cgroups import ROOT

HUGE = 2 << 20
"""Bytes of a huge page on x86-64, and on AArch64 with pages of 4 KiB."""
MAP_HUGETLB = 0x40000 | 21 << 26
"""MAP_HUGETLB with MAP_HUGE_2MB, see mmap(2); Python has no names for them."""
_THP = "sys/kernel/mm/transparent_hugepage"
_HUGETLB = "sys/kernel/mm/hugepages/hugepages-2048kB"


@dataclass(frozen=True, slots=True)
class HugePages:
    """The kernel's settings; empty texts where it has none."""

    enabled: str
    """Transparent huge pages: always, madvise or never."""
    reserved: int
    """Free pages of the hugetlb pool."""

    @classmethod
    def of_host(cls, root: Path = ROOT) -> "HugePages":
        return cls(_choice(root / _THP / "enabled"), _count(root / _HUGETLB / "free_hugepages"))

    def __str__(self) -> str:
        if not self.enabled and not self.reserved:
            return "none on this system"
        pool = f"{self.reserved * HUGE / 2**20:.0f} MiB free in the hugetlb pool"
        return f"transparent: {self.enabled or 'not in this kernel'}; {pool}"


def advise_huge(memory: mmap.mmap) -> None:
    """Ask for huge pages in a mapping: of anonymous memory, or of a file whose file system has large folios. Files
    that are in the page cache already keep the pages that they have."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without, or a file system whose pages cannot be huge
            memory.madvise(mmap.MADV_HUGEPAGE)


def huge_memory(size: int, *, pool: bool = True) -> mmap.mmap:
    """Allocate private memory of at least `size` bytes: of the hugetlb `pool` if it has room, else with transparent
    huge pages if the kernel gives them. Raises `OSError` without memory.

    If the cgroup has a limit for the pool, its memory is there only until it is touched.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if pool and sys.platform == "linux":
        with contextlib.suppress(OSError):  # the pool has no room
            return mmap.mmap(-1, -(-size // HUGE) * HUGE, flags=flags | MAP_HUGETLB)
    memory = mmap.mmap(-1, size, flags=flags)
    advise_huge(memory)
    return memory


def read_into(memory: mmap.mmap, file: Path, size: int) -> None:
    """Read the first `size` bytes of a file. Raises `OSError`, also if it is shorter."""
    with file.open("rb", buffering=0) as source, memoryview(memory) as view:
        done = 0
        while done < size:
            with view[done:size] as rest:
                count = source.readinto(rest)
            if not count:
                raise OSError(f"{file} ends after {done} of {size} bytes")
            done += count


def huge_bytes(address: int, root: Path = ROOT) -> int:
    """Return the bytes of the mapping at an address that lie in huge pages (smaps in proc(5)); 0 if unknown."""
    found, inside = 0, False
    try:
        lines = (root / "proc/self/smaps").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(":")
        if "-" in name.split(" ")[0]:  # the header of a mapping: FIRST-LAST and its permissions
            first, _, last = name.split(" ")[0].partition("-")
            inside = int(first, 16) <= address < int(last, 16)
        elif inside and name in ("AnonHugePages", "FilePmdMapped", "ShmemPmdMapped", "Private_Hugetlb"):
            found += int(value.split()[0]) * 1024
    return found


def _choice(file: Path) -> str:
    """Return the choice in brackets."""
    try:
        return file.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def _count(file: Path) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
