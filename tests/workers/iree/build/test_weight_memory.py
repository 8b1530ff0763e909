"""The memory of packed weights: mapped or copied, and how the file is written."""

import errno
import io
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import structlog
from safetensors.numpy import save_file

from workers.host.huge_pages import HUGE, read_into
from workers.iree.build import weight_memory
from workers.iree.build.weight_memory import HugeWriter, copy_weights, index_of, map_weights


class Writes(io.RawIOBase):
    """A file that notes the length of each write, and takes at most so many bytes of one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lengths: list[int] = []
        self.contents = bytearray()

    def write(self, data: object) -> int:
        part = bytes(memoryview(data)[: self.most])  # type: ignore[arg-type]
        self.lengths.append(len(part))
        self.contents += part
        return len(part)


def test_a_file_is_written_in_whole_huge_pages() -> None:
    out = Writes(1 << 40)
    writer = HugeWriter(out)  # type: ignore[arg-type]
    ones, twos = bytes([1]) * (HUGE - 100), bytes([2]) * (3 * HUGE)
    parts = [(0, b"head"), (64, ones), (HUGE + 64, twos), (4 * HUGE + 128, b"end")]
    for offset, data in parts:
        writer.write_at(offset, memoryview(data))
    writer.flush()
    expected = bytearray(4 * HUGE + 131)
    for offset, data in parts:
        expected[offset : offset + len(data)] = data
    assert out.contents == expected
    assert out.lengths[-1] == 131
    assert all(length % HUGE == 0 for length in out.lengths[:-1])


def test_a_write_that_takes_a_part_is_continued() -> None:
    out = Writes(1 << 20)
    writer = HugeWriter(out)  # type: ignore[arg-type]
    writer.write_at(5, memoryview(bytes([7]) * (2 * HUGE)))
    writer.flush()
    assert out.contents == bytes(5) + bytes([7]) * (2 * HUGE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file({"a": np.arange(1000, dtype=np.uint8)}, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.mark.parametrize("nodes", [(), (0,)])
def test_a_mapped_file_has_the_tensors(file: Path, nodes: tuple[int, ...]) -> None:
    memory = map_weights(file, nodes)
    ((name, entry),) = index_of(memory, len(memory)).items()
    assert name == "a"
    assert np.array_equal(np.asarray(entry.file_view), np.arange(1000, dtype=np.uint8))


def test_a_pool_that_the_cgroup_forbids_is_left_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is there until it is touched."""
    tried: list[bool] = []

    def fail_first(memory: mmap.mmap, source: Path, size: int) -> None:
        tried.append(len(tried) == 0)
        if tried[-1]:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        read_into(memory, source, size)

    monkeypatch.setattr(weight_memory, "read_into", fail_first)
    memory = copy_weights(file)
    assert memory[: file.stat().st_size] == file.read_bytes()
    assert tried == [True, False]


def test_a_copy_has_the_tensors_and_outlives_the_file(file: Path) -> None:
    size = file.stat().st_size
    with structlog.testing.capture_logs() as logs:
        memory = copy_weights(file)
    file.write_bytes(bytes(size))
    ((_, entry),) = index_of(memory, size).items()
    assert np.array_equal(np.asarray(entry.file_view), np.arange(1000, dtype=np.uint8))
    assert [(line["event"], line["bytes"]) for line in logs] == [("weights_copied", size)]
