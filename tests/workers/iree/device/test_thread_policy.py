"""The thread that asks gives way to those that compute."""

import os
import threading
from collections.abc import Callable

import pytest

from workers.iree.device.device import Device
from workers.iree.device.thread_policy import yield_to_compute_threads

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such policy")


def policies(do: Callable[[], object]) -> tuple[int, set[int]]:
    """The policy of a new thread after it has done something, and those of the threads that this has started."""
    found: list[tuple[int, set[int]]] = []

    def run() -> None:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the runner's thread may have opened a device
        before = threads()
        kept = do()
        others = threads() - before
        found.append((os.sched_getscheduler(0), {os.sched_getscheduler(other) for other in others}))
        del kept

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def test_who_opens_a_device_of_threads_gives_way_and_they_do_not() -> None:
    own, others = policies(lambda: Device("local-task", 2))
    assert (own, others) == (os.SCHED_BATCH, {os.SCHED_OTHER})


def test_the_threads_of_a_second_device_do_not_give_way_either() -> None:
    own, others = policies(lambda: (Device("local-task", 2), Device("local-task", 2)))
    assert (own, others) == (os.SCHED_BATCH, {os.SCHED_OTHER})


def test_who_computes_alone_does_not_give_way() -> None:
    assert policies(lambda: Device("local-sync", 1))[0] == os.SCHED_OTHER


def test_a_policy_that_somebody_chose_is_left() -> None:
    def chosen() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        yield_to_compute_threads()

    assert policies(chosen)[0] == os.SCHED_IDLE


@pytest.mark.parametrize("call", ["sched_getscheduler", "sched_setscheduler"])
def test_a_sandbox_that_forbids_it(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    def forbidden() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, forbid)
            yield_to_compute_threads()

    assert policies(forbidden)[0] == os.SCHED_OTHER
