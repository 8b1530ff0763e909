"""Compute threads are found by their names, and pinned."""

import os
import sys
import time
from pathlib import Path

import pytest
import structlog

from workers.iree.device import compute_threads as module
from workers.iree.device.compute_threads import POLL_S, POLLS, TASKS, compute_threads, pin_threads
from workers.iree.device.device import STACK_BYTES, Device

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no /proc/self/task")


def _started(before: set[int], count: int) -> set[int]:
    """Wait for so many threads beside those of `before`, and return them."""
    threads = set[int]()
    for _ in range(POLLS):  # a thread names itself when it first runs
        threads = set(compute_threads()) - before
        if len(threads) >= count:
            break
        time.sleep(POLL_S)
    return threads


def test_a_device_has_as_many_threads_as_it_was_asked_for_and_pins_them() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = set(compute_threads())
    pins = [(cpus[0],), tuple(cpus), (cpus[-1],)]
    pinned = Device("local-task", 3, pins=pins)
    own = {thread: number for thread, number in compute_threads().items() if thread not in before}
    free = Device("local-task", 2)
    others = _started(before | set(own), 2)
    assert sorted(own.values()) == [0, 1, 2]
    assert {number: os.sched_getaffinity(thread) for thread, number in own.items()} == dict(enumerate(map(set, pins)))
    assert [os.sched_getaffinity(thread) for thread in others] == [set(cpus)] * 2, "the number of threads is its own"
    pinned.close()
    free.close()
    assert os.sched_getaffinity(0) == set(cpus), "the thread that asks is not pinned"
    assert not compute_threads().keys() & (own.keys() | others)


def test_the_stack_of_a_thread_holds_what_a_graph_may_take() -> None:
    before = set(compute_threads())
    device = Device("local-task", 1)
    (thread,) = _started(before, 1)
    pointer = None
    status = TASKS / str(thread) / "syscall"
    if not status.exists():
        pytest.skip("this kernel does not tell where a thread waits")
    for _ in range(POLLS):
        state = status.read_text().split()
        if len(state) == 9:  # it waits: the stack pointer is known
            pointer = int(state[7], 16)
            break
        time.sleep(POLL_S)
    assert pointer is not None, "the thread does not wait"
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    (low,) = [int(low, 16) for low, high in ranges if int(low, 16) <= pointer < int(high, 16)]
    device.close()
    assert pointer - low > STACK_BYTES


def test_a_sandbox_that_forbids_it_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    with structlog.testing.capture_logs() as logs:
        Device("local-task", 2, pins=[(0,), (0,)]).close()
    assert [(line["event"], line["problem"]) for line in logs] == [("threads_not_pinned", "Operation not permitted")]


def test_threads_that_do_not_appear_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLLS", 2)
    with structlog.testing.capture_logs() as logs:
        pin_threads([(0,)], set(compute_threads()))
    assert [line["problem"] for line in logs] == ["0 of 1 were found"]


def test_other_threads_are_not_compute_threads(tmp_path: Path) -> None:
    for number, name in enumerate(("python", "iree-worker-7", "iree-pro")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    (tmp_path / "9").mkdir()  # it has ended
    assert compute_threads(tmp_path) == {1: 7}
