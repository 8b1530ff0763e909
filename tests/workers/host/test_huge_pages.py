"""Huge pages: the kernel's settings, and memory with them or without."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from workers.host.huge_pages import HUGE, MAP_HUGETLB, HugePages, advise_huge, huge_bytes, huge_memory, read_into


def address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def test_the_settings_of_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "sys/kernel/mm"
    (folder / "transparent_hugepage").mkdir(parents=True)
    (folder / "transparent_hugepage/enabled").write_text("always [madvise] never\n")
    (folder / "hugepages/hugepages-2048kB").mkdir(parents=True)
    (folder / "hugepages/hugepages-2048kB/free_hugepages").write_text("320\n")
    found = HugePages.of_host(tmp_path)
    assert found == HugePages("madvise", 320)
    assert str(found) == "transparent: madvise; 640 MiB free in the hugetlb pool"
    assert str(HugePages.of_host(tmp_path / "empty")) == "none on this system"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")
def test_memory_is_in_huge_pages_if_the_kernel_gives_them() -> None:
    if HugePages.of_host().enabled not in ("always", "madvise"):
        pytest.skip("this kernel gives none")
    memory = huge_memory(4 * HUGE)
    memory[:] = bytes(len(memory))
    assert huge_bytes(address(memory)) >= 3 * HUGE, "all but what is not aligned"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has them")
def test_the_pool_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = mmap.mmap
    tried: list[tuple[int, bool]] = []

    def pooled(descriptor: int, size: int, flags: int) -> mmap.mmap:
        tried.append((size, bool(flags & MAP_HUGETLB)))
        if flags & MAP_HUGETLB and len(tried) > 1:
            raise OSError(12, "Cannot allocate memory")
        return plain(descriptor, size, flags=flags & ~MAP_HUGETLB)

    monkeypatch.setattr(mmap, "mmap", pooled)
    assert len(huge_memory(HUGE + 1)) == 2 * HUGE
    assert len(huge_memory(HUGE + 1)) == HUGE + 1, "the pool has no room"
    assert tried == [(2 * HUGE, True), (2 * HUGE, True), (HUGE + 1, False)]


def test_huge_bytes_are_those_of_the_mapping(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/smaps").write_text(
        "7f0000000000-7f0000400000 r--s 00000000 08:01 9    /weights\nRss: 4096 kB\nFilePmdMapped:  4096 kB\n"
        "7f0000400000-7f0000800000 rw-p 00000000 00:00 0\nAnonHugePages:  2048 kB\nVmFlags: rd wr\n"
    )
    assert [huge_bytes(at, tmp_path) for at in (0x7F0000001000, 0x7F0000400000, 1)] == [4 << 20, 2 << 20, 0]
    assert huge_bytes(0, tmp_path / "empty") == 0


def test_a_mapping_of_a_file_takes_the_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "file").open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    advise_huge(memory)
    assert memory[0] == ord("x")


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(200)))
    memory = mmap.mmap(-1, 256)
    read_into(memory, file, 200)
    assert memory[:200] == bytes(range(200))
    with pytest.raises(OSError, match="ends after 200 of 201 bytes"):
        read_into(memory, file, 201)
