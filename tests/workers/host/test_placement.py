"""The thread that loads, the memory policy, and the pages of a mapped file."""

import mmap
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import structlog

from workers.host import numa_policy, placement
from workers.host.cpu_plan import WorkerCpus
from workers.host.numa_policy import STRIPE, is_spread, move_to, nodes_of, use_memory_of
from workers.host.placement import place_file, place_thread
from workers.host.topology import Topology

T = TypeVar("T")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no such calls")


def on_a_thread(do: Callable[[], T]) -> T:
    """The result of a function on a thread of its own, whose policies end with it."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(do()))
    thread.start()
    thread.join()
    return results[0]


def allowed_nodes() -> tuple[int, ...]:
    nodes = tuple(sorted(Topology.of_host().memory_nodes))
    try:
        on_a_thread(lambda: use_memory_of(nodes))
    except OSError as error:
        pytest.skip(f"this sandbox forbids it: {error}")
    return nodes


def touched(pages: int) -> mmap.mmap:
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    for page in range(pages):
        memory[page * mmap.PAGESIZE] = 1
    return memory


def addresses(memory: mmap.mmap) -> list[int]:
    start = int(np.frombuffer(memory, np.uint8).ctypes.data)
    return list(range(start, start + len(memory), mmap.PAGESIZE))


def test_pages_lie_on_the_nodes_of_the_policy() -> None:
    nodes = allowed_nodes()

    def found() -> list[int]:
        place_thread(WorkerCpus(1, nodes=nodes))
        memory = touched(8)
        return nodes_of(addresses(memory))

    assert set(on_a_thread(found)) == set(nodes)


def test_pages_are_moved_to_one_node() -> None:
    node = allowed_nodes()[0]
    memory = touched(4)
    move_to(addresses(memory)[0], len(memory), [node])
    assert nodes_of(addresses(memory)) == [node] * 4


def test_pages_of_one_node_are_not_spread_over_two() -> None:
    node = allowed_nodes()[0]
    memory = touched(4)
    move_to(addresses(memory)[0], len(memory), [node])
    start, size = addresses(memory)[0], len(memory)
    assert is_spread(start, size, [node])
    assert not is_spread(start, size, [node, 1000])


def test_pages_are_moved_to_several_nodes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[int], list[int]]] = []
    monkeypatch.setattr(numa_policy, "BATCH", 512)
    monkeypatch.setattr(
        numa_policy,
        "_call",
        lambda number, pid, count, pages, nodes, found, flags: asked.append((count, list(pages), list(nodes))),
    )
    size = 2 * STRIPE + 3 * mmap.PAGESIZE
    move_to(mmap.PAGESIZE, size, [4, 7])
    pages = size // mmap.PAGESIZE
    assert [count for count, _, _ in asked] == [512, 512, pages - 1024]
    assert [address for _, found, _ in asked for address in found] == [
        (page + 1) * mmap.PAGESIZE for page in range(pages)
    ]
    assert [set(nodes) for _, _, nodes in asked] == [{4}, {7}, {4}]


def test_a_mapped_file_is_in_memory_after_it_was_placed(tmp_path: Path) -> None:
    node = allowed_nodes()[0]
    file = tmp_path / "weights"
    file.write_bytes(bytes(3 * mmap.PAGESIZE + 5))
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    assert all(found < 0 for found in nodes_of(addresses(memory))), "none is mapped yet"
    place_file(memory, addresses(memory)[0], [node])
    assert nodes_of(addresses(memory)) == [node] * 4


def test_the_thread_is_bound_with_those_that_it_starts() -> None:
    cpu = min(os.sched_getaffinity(0))

    def found() -> tuple[set[int], set[int]]:
        place_thread(WorkerCpus(1, cpus=(cpu,)))
        return os.sched_getaffinity(0), on_a_thread(lambda: os.sched_getaffinity(0))

    before = os.sched_getaffinity(0)
    assert on_a_thread(found) == ({cpu}, {cpu})
    assert os.sched_getaffinity(0) == before


def test_a_node_that_is_not_there_is_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        on_a_thread(lambda: place_thread(WorkerCpus(1, nodes=(1000,))))
        place_file(mmap.mmap(-1, mmap.PAGESIZE), 0, [1000])
    assert [line["event"] for line in logs] == ["worker_not_placed", "weights_not_placed"]
    assert {line["advice"] for line in logs} == {placement.ADVICE}


def test_a_system_without_these_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="no NUMA calls for Linux on riscv64"):
        use_memory_of([0])
