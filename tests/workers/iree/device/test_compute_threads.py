"""Compute threads are found by their names, and pinned."""

import os
import sys
import time
from pathlib import Path

import pytest
import structlog

from workers.iree.device import compute_threads as module
from workers.iree.device.compute_threads import POLL_S, POLLS, compute_threads, pin_threads
from workers.iree.device.device import Device

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no /proc/self/task")


def test_a_device_has_as_many_threads_as_it_was_asked_for_and_pins_them() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = set(compute_threads())
    pins = [(cpus[0],), tuple(cpus), (cpus[-1],)]
    pinned = Device("local-task", 3, pins=pins)
    own = {thread: number for thread, number in compute_threads().items() if thread not in before}
    free = Device("local-task", 2)
    others = set[int]()
    for _ in range(POLLS):  # a thread names itself when it first runs
        others = set(compute_threads()) - before - set(own)
        if len(others) >= 2:
            break
        time.sleep(POLL_S)
    assert sorted(own.values()) == [0, 1, 2]
    assert {number: os.sched_getaffinity(thread) for thread, number in own.items()} == dict(enumerate(map(set, pins)))
    assert [os.sched_getaffinity(thread) for thread in others] == [set(cpus)] * 2, "the number of threads is its own"
    pinned.close()
    free.close()
    assert os.sched_getaffinity(0) == set(cpus), "the thread that asks is not pinned"
    assert not compute_threads().keys() & (own.keys() | others)


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
