"""Real child processes that fail: each way to misbehave, what the listener hears of it, and what follows."""

import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

import anyio
import pytest
import structlog

from actors.process.exit_cause import Origin
from actors.supervision.messages import RestartWorker, StopWorker
from actors.supervision.restart_policy import MAX_FAILED_STARTS, RestartPolicy
from actors.supervision.worker import WorkerState, WorkerUnavailable
from actors.transport.link import Link
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.events import Hello
from tests.actors.supervision.processes import ONCE, PATIENT, WAIT_S, fake_worker, submit, supervised
from tests.pids import pid_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_sockets")]


FAULTS = {
    "exits": ("", "exited with status 4"),
    "silent_start": ("hello", "no Hello for"),
    "stuck_loading": ("loading", "no loading progress for"),
    "silent": ("heartbeat", "no frame for"),
    "stopped_process": ("suspended", "it was suspended for")
    if sys.platform == "linux"
    else ("heartbeat", "no frame for"),
    "hangs_in_step": ("hang", "no step finished with work in flight for"),
    "garbage": ("", "broke the protocol"),
    "oversized": ("", "its link was lost"),
    "too_many_frames": ("", "breaks the link's bounds"),
    "wrong_incarnation": ("", "incarnation 8 is not 1"),
    "wrong_name": ("", "worker 'other' is not 'w'"),
    "no_hello_first": ("", "Heartbeat came before Hello"),
    "hello_twice": ("", "a second Hello came"),
    "closes_link": ("", "its link was lost"),
    "load_fails": ("", r"it left \(load_failed\): no such weights"),
    "last_words": ("", "exited with status 3"),
    "killed": ("", "was killed by SIGKILL"),
}

FROM_OUTSIDE = {"stopped_process", "killed"}


@pytest.mark.parametrize(("mode", "limit", "reason"), [(mode, *rest) for mode, rest in FAULTS.items()], ids=FAULTS)
async def test_each_fault_ends_the_worker_with_its_reason(mode: str, limit: str, reason: str) -> None:
    deadlines = replace(PATIENT, term=0.2, stop=1, **({limit: 0.4} if limit else {}))
    outside = mode in FROM_OUTSIDE and sys.platform == "linux"  # elsewhere nobody tells
    async with supervised(mode, policy=ONCE, deadlines=deadlines) as (worker, recorder):
        await recorder.until(lambda: recorder.states[-1:] in ([WorkerState.READY], [WorkerState.GIVEN_UP]))
        if recorder.states[-1] is WorkerState.READY:
            if mode == "killed":
                os.kill(pid_of(worker.status), signal.SIGKILL)
            else:
                worker.send_nowait([submit()])
        end = WorkerState.BACKOFF if outside else WorkerState.GIVEN_UP
        await recorder.until(lambda: end in recorder.states)
        status = recorder.statuses[[each.state for each in recorder.statuses].index(end)]
    assert re.search(reason, status.reason), status.reason
    if sys.platform == "linux":
        assert set(recorder.origins) <= {Origin.OUTSIDE if outside else Origin.WITHIN}
    if mode != "hangs_in_step":  # whose one event is late when this machine is busy
        assert len(recorder.events) == {"last_words": 100, "garbage": 1}.get(mode, 0)
    with pytest.raises(WorkerUnavailable, match="stopped" if outside else "given_up"):
        worker.send_nowait([submit()])


async def test_who_fell_silent_without_work_is_soon_replaced_whatever_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.supervision.protocol_state.SILENT_S", 0.2)
    async with supervised("good", deadlines=replace(PATIENT, idle=2.0, suspended=60.0)) as (worker, recorder):
        status = await recorder.until_state(WorkerState.READY)
        os.kill(pid_of(status), signal.SIGSTOP)
        while anyio.current_time() - worker.status.last_frame < 0.2:  # noqa: ASYNC110  silence does not tell
            await anyio.sleep(0.01)
        worker.send_nowait([submit()])
        await recorder.until(lambda: bool(recorder.lost))
        assert recorder.lost == [(1, "no heartbeat without work for 2 s")]
        await recorder.until_state(WorkerState.READY)
    if sys.platform == "linux":
        assert recorder.origins[0] is Origin.OUTSIDE


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word on who connected is asked on Linux alone")
async def test_another_process_at_the_socket_is_not_taken_for_the_worker() -> None:
    endpoints: list[str] = []
    silent = fake_worker("silent_start", "good")

    def command(endpoint: str, incarnation: int) -> Sequence[str]:
        endpoints.append(endpoint)
        return silent(endpoint, incarnation)

    async with supervised(command=command, deadlines=replace(PATIENT, term=0.2)) as (worker, recorder):
        await recorder.until(lambda: worker.status.pid is not None)
        other = Link.connect(endpoints[0], lambda frames: None)
        hello = Hello(PROTOCOL_VERSION, "w", 1, pid_of(worker.status), "m", "fake", "none", 4, 128)
        await other.send([encode(hello)])
        await recorder.until(lambda: WorkerState.BACKOFF in recorder.states)
        other.close(0)
        status = await recorder.until_state(WorkerState.READY)
    assert status.incarnation == 2
    assert any(f"process {os.getpid()} said Hello, which was not started" in each.reason for each in recorder.statuses)


async def test_another_protocol_version_is_refused_for_good() -> None:
    with structlog.testing.capture_logs() as logs:
        async with supervised("wrong_version") as (_, recorder):
            status = await recorder.until_state(WorkerState.GIVEN_UP)
    assert "protocol version 4 is not 3" in status.reason
    assert status.incarnation == 1
    assert [line["refusal"] for line in logs if line["event"] == "refused"] == ["protocol version 4 is not 3"]


async def test_a_worker_that_can_never_load_is_given_up_at_once() -> None:
    async with supervised("load_refused", "good") as (_, recorder):
        status = await recorder.until_state(WorkerState.GIVEN_UP)
    assert status.reason == "cannot be healed by a restart: it left (load_refused): no such device"
    assert status.incarnation == 1


async def test_a_killed_worker_comes_back_as_a_new_incarnation() -> None:
    async with supervised("good") as (worker, recorder):
        first = await recorder.until_state(WorkerState.READY)
        os.kill(pid_of(first), signal.SIGKILL)
        await recorder.until(lambda: bool(recorder.lost))
        with pytest.raises(WorkerUnavailable):
            worker.send_nowait([submit()])
        second = await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        await recorder.until(lambda: len(recorder.events) == 2)
    assert second.pid != first.pid
    assert (second.incarnation, second.restarts) == (2, 1)
    assert {number for number, _ in recorder.events} == {2}
    assert [number for number, _ in recorder.lost] == [1, 2]
    assert "SIGKILL" in recorder.lost[0][1]
    assert (first.last_failure, second.last_failure) == (None, worker.status.last_failure)
    last = second.last_failure
    assert last is not None
    assert (last.incarnation, last.reason) == (1, "its process was killed by SIGKILL")
    assert last.origin is (Origin.OUTSIDE if sys.platform == "linux" else Origin.UNKNOWN)
    assert recorder.origins[0] is last.origin


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells who sent a SIGKILL")
async def test_it_may_be_killed_as_often_as_somebody_likes() -> None:
    policy = RestartPolicy(max_failures=2, first_delay_s=0.0, max_delay_s=0.0)
    async with supervised("good", policy=policy) as (_, recorder):
        for incarnation in range(1, 6):
            status = await recorder.until_state(WorkerState.READY)
            assert status.incarnation == incarnation
            os.kill(pid_of(status), signal.SIGKILL)
            await recorder.until_lost(incarnation)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells that a process is suspended")
async def test_one_that_is_suspended_while_it_starts_keeps_nobody_waiting() -> None:
    """Neither for the deadlines of a start, nor for an answer to SIGTERM."""
    deadlines = replace(PATIENT, suspended=0.2, term=2 * WAIT_S)

    async def suspend(incarnation: int) -> None:
        await recorder.until(lambda: worker.status.incarnation == incarnation and worker.status.pid is not None)
        os.kill(pid_of(worker.status), signal.SIGSTOP)

    async with supervised("silent_start", "stuck_loading", "good", deadlines=deadlines) as (worker, recorder):
        for incarnation in (1, 2):
            await suspend(incarnation)
        assert (await recorder.until_state(WorkerState.READY)).incarnation == 3
    assert {status.reason for status in recorder.statuses} - {""} == {"it was suspended for 0.2 s", "stopped"}


async def test_it_is_given_up_after_too_many_failures() -> None:
    policy = RestartPolicy(max_failures=3, first_delay_s=0.0, max_delay_s=0.0)
    async with supervised("exits", policy=policy) as (worker, recorder):
        await recorder.until_state(WorkerState.GIVEN_UP)
    assert (worker.status.state, worker.status.incarnation) == (WorkerState.GIVEN_UP, 3)
    assert worker.status.reason == "failed 3 times within 300 s: its process exited with status 4"
    assert recorder.lost == []


async def test_ends_that_are_exempt_do_not_count() -> None:
    policy = RestartPolicy(max_failures=2, first_delay_s=0.0, max_delay_s=0.0)
    async with supervised("last_words", policy=policy) as (worker, recorder):
        for incarnation in range(1, 6):
            await recorder.until_state(WorkerState.READY)
            if incarnation <= 3:
                worker.exempt_nowait(incarnation)
            worker.send_nowait([submit(incarnation)])
            await recorder.until_lost(incarnation)
        await recorder.until_state(WorkerState.GIVEN_UP)
    assert worker.status.incarnation == 5
    assert worker.status.reason.startswith("failed 2 times within 300 s: ")


async def test_starts_that_keep_failing_are_given_up_however_long_each_takes() -> None:
    """The policy forgets a failure at once, as it does those of starts that take longer than its window."""
    forgetful = RestartPolicy(window_s=1e-9, first_delay_s=0.0, max_delay_s=0.0)

    async def fail(incarnation: int) -> None:
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit(incarnation)])
        await recorder.until(lambda: worker.status.incarnation > incarnation)

    async with supervised("last_words", "last_words", *["exits"] * 8, policy=forgetful) as (worker, recorder):
        for incarnation in (1, 2):
            await fail(incarnation)
        await recorder.until_state(WorkerState.GIVEN_UP)
    assert worker.status.incarnation == 2 + MAX_FAILED_STARTS
    assert worker.status.reason == "failed 5 starts in a row: its process exited with status 4"


async def test_one_that_served_is_tried_until_the_system_has_room_for_it() -> None:
    """Ten starts: twice what ends one that cannot be started for another reason."""
    starts = fake_worker("ok")

    def command(endpoint: str, incarnation: int) -> Sequence[str]:
        if 1 < incarnation < 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return starts(endpoint, incarnation)

    async with supervised(command=command, policy=RestartPolicy(), deadlines=replace(PATIENT, shortage=0.001)) as (
        worker,
        recorder,
    ):
        await recorder.until_state(WorkerState.READY)
        os.kill(pid_of(worker.status), signal.SIGKILL)
        await recorder.until(lambda: worker.status.incarnation == 12)
        await recorder.until_state(WorkerState.READY)
    assert WorkerState.GIVEN_UP not in recorder.states
    assert any(os.strerror(errno.ENOSPC) in status.reason for status in recorder.statuses)


async def test_one_that_never_served_is_not() -> None:
    def command(endpoint: str, incarnation: int) -> Sequence[str]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with supervised(command=command) as (worker, recorder):
        await recorder.until_state(WorkerState.GIVEN_UP)
    assert (worker.status.state, worker.status.incarnation) == (WorkerState.GIVEN_UP, MAX_FAILED_STARTS)


async def test_a_worker_that_dies_while_it_drains_has_failed() -> None:
    async with supervised("slow_drain", deadlines=PATIENT) as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        worker.ref.tell(RestartWorker(30.0))
        await recorder.until_state(WorkerState.DRAINING)
        os.kill(pid_of(worker.status), signal.SIGKILL)
        await recorder.until(lambda: worker.status.incarnation == 2)
        worker.ref.tell(StopWorker())
    (state,) = {status.state for status in recorder.statuses if "SIGKILL" in status.reason}
    assert state is WorkerState.BACKOFF
    assert "SIGKILL" in recorder.lost[0][1]


async def test_a_program_that_is_not_there_is_given_up() -> None:
    absent = ["/no/such/program"]
    async with supervised(command=lambda endpoint, incarnation: absent, policy=ONCE) as (worker, recorder):
        await recorder.until_state(WorkerState.GIVEN_UP)
    assert "cannot start '/no/such/program'" in worker.status.reason
    assert worker.status.last_failure is not None
    assert worker.status.last_failure.reason.startswith("cannot start '/no/such/program'")
