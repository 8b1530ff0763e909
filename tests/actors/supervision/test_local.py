"""Supervision of real child processes: their start, what they say, and their end when they are asked to."""

import asyncio
import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import structlog

from actors.actor import AskTimeout, Terminated
from actors.supervision.messages import AwaitReady, DrainWorker, RestartWorker, StartWorker, StopWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerEvent, WorkerNotice, WorkerState, WorkerStatus, WorkerUnavailable
from actors.supervision.worker_actor import WorkerRef
from actors.transport.endpoint import sweep
from protocol.bounds import MAX_FRAMES_PER_MESSAGE
from protocol.commands import Cancel, Command, Submit
from protocol.events import Finished, Heartbeat, Step
from protocol.request import Limits, Sampling, TokensInput
from tests.actors.supervision.processes import HERE, PATIENT, WAIT_S, Recorder, submit, supervised, wait_gone

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_sockets")]


async def test_a_worker_serves_and_stops_when_asked() -> None:
    async with supervised("good", start=False) as (worker, recorder):
        assert not worker.status.running
        with pytest.raises(WorkerUnavailable, match="stopped"):
            worker.send_nowait([submit()])
        worker.ref.tell(StartWorker())
        status = await recorder.until_state(WorkerState.READY)
        assert (status.incarnation, status.restarts, status.reason) == (1, 0, "")
        assert status.hello is not None
        assert status.hello.pid == status.pid
        worker.send_nowait([submit(1), submit(2)])
        await recorder.until(lambda: len(recorder.events) == 4)
        worker.ref.tell(StopWorker())
        await recorder.until_state(WorkerState.STOPPED)
    assert [type(event) for _, event in recorder.events] == [Step, Finished, Step, Finished]
    assert recorder.lost == [(1, "stopped")]
    assert recorder.states == [
        WorkerState.STARTING,
        WorkerState.LOADING,
        WorkerState.READY,
        WorkerState.DRAINING,
        WorkerState.STOPPED,
    ]
    assert worker.status.pid is None


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="another process's environment is read from /proc")
async def test_a_worker_gets_neither_the_servers_key_nor_its_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("BATON_API_KEY", "BATON_ADMIN_KEY", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
    for name in names:
        monkeypatch.setenv(name, "kept")
    monkeypatch.setenv("BATON_TEST_OTHER", "handed-on")
    async with supervised("good") as (_, recorder):
        status = await recorder.until_state(WorkerState.READY)
        environment = await anyio.Path(f"/proc/{status.pid}/environ").read_bytes()
    assert b"BATON_TEST_OTHER=handed-on" in environment
    assert [name for name in names if name.encode() in environment] == []


async def test_a_socket_file_lives_only_until_the_worker_has_come(tmp_path: Path) -> None:
    async with supervised("good") as (worker, recorder):
        await recorder.until(lambda: bool(recorder.states))
        assert len(os.listdir(tmp_path)) == 1
        await recorder.until_state(WorkerState.READY)
        assert os.listdir(tmp_path) == []
        worker.send_nowait([submit()])
        await recorder.until(lambda: len(recorder.events) == 2)


async def test_a_cancel_lets_a_willing_worker_leave_by_itself() -> None:
    with structlog.testing.capture_logs() as logs:
        async with supervised("good") as (_, recorder):
            await recorder.until_state(WorkerState.READY)
    assert recorder.lost == [(1, "stopped")]
    assert WorkerState.BACKOFF not in recorder.states
    assert [line["status"] for line in logs if line["event"] == "worker_exited"] == [0]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_a_cancel_at_any_moment_leaves_nothing(turns: int) -> None:
    descriptors = len(os.listdir("/dev/fd"))
    async with supervised("good", deadlines=replace(PATIENT, term=0.2)) as (worker, _):
        for _ in range(turns):
            await asyncio.sleep(0)
    assert worker.status.state is WorkerState.STOPPED
    assert worker.status.pid is None
    assert len(os.listdir("/dev/fd")) == descriptors


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_worker_that_ignores_everything_is_killed(how: str) -> None:
    async with supervised("deaf", deadlines=replace(PATIENT, stop=0.3, term=0.2)) as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        if how == "stop":
            worker.ref.tell(StopWorker())
            await recorder.until_state(WorkerState.STOPPED)
    assert worker.status.state is WorkerState.STOPPED
    assert recorder.lost == [(1, "stopped")]


async def test_a_draining_worker_takes_only_cancels_and_loses_nothing() -> None:
    async with supervised("slow_drain") as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        worker.ref.tell(DrainWorker(30.0))
        assert worker.status.state is WorkerState.DRAINING
        with pytest.raises(WorkerUnavailable, match="draining"):
            worker.send_nowait([Cancel(stream=1), submit(2)])
        worker.send_nowait([Cancel(stream=1)])  # this fake finishes, and leaves, when it is cancelled
        await recorder.until_state(WorkerState.STOPPED)
    assert [type(event) for _, event in recorder.events] == [Finished]


async def test_a_drain_that_takes_too_long_ends_by_force() -> None:
    async with supervised("deaf", deadlines=replace(PATIENT, stop=0.2, term=0.2)) as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.ref.tell(DrainWorker(0.1))
        await recorder.until_state(WorkerState.STOPPED)


@pytest.mark.parametrize("mode", ["silent_start", "stuck_loading"])
async def test_a_worker_is_stopped_before_it_is_ready(mode: str) -> None:
    async with supervised(mode, deadlines=replace(PATIENT, term=0.2)) as (worker, recorder):
        await recorder.until_state(WorkerState.STARTING if mode == "silent_start" else WorkerState.LOADING)
        worker.ref.tell(DrainWorker(1000.0))
        await recorder.until_state(WorkerState.STOPPED)


async def test_a_stop_while_it_waits_for_its_restart() -> None:
    async with supervised("exits", policy=RestartPolicy(first_delay_s=3600, max_delay_s=3600)) as (worker, recorder):
        await recorder.until_state(WorkerState.BACKOFF)
        worker.ref.tell(StopWorker())
        await recorder.until_state(WorkerState.STOPPED)
    assert worker.status.incarnation == 1


async def test_a_stop_of_a_worker_that_was_not_started_changes_nothing() -> None:
    async with supervised("good", start=False) as (worker, recorder):
        status = await recorder.stop(worker)
        assert (status.state, status.incarnation) == (WorkerState.STOPPED, 0)
        assert recorder.statuses == []


async def test_a_stopped_worker_can_be_started_again() -> None:
    async with supervised("good") as (worker, recorder):
        for incarnation in (1, 2):
            status: WorkerStatus = await worker.ref.ask(lambda reply: AwaitReady(0, reply), timeout=WAIT_S)
            assert (status.state, status.incarnation) == (WorkerState.READY, incarnation)
            stopped = await recorder.stop(worker)
            assert (stopped.state, stopped.pid, stopped.running) == (WorkerState.STOPPED, None, False)
            worker.ref.tell(StartWorker())


async def test_operations_are_messages_that_are_answered_when_they_are_done() -> None:
    async with supervised("slow_drain") as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        with pytest.raises(AskTimeout):
            await worker.ref.ask(functools.partial(RestartWorker, 30.0, 0.0), timeout=0.01)
        assert worker.status.state is WorkerState.DRAINING, "who gave up does not undo it"
        async with anyio.create_task_group() as group:

            async def ready() -> None:
                status: WorkerStatus = await worker.ref.ask(lambda reply: AwaitReady(1, reply), timeout=WAIT_S)
                assert (status.incarnation, status.restarts) == (2, 0), "nothing failed"

            group.start_soon(ready)
            await anyio.wait_all_tasks_blocked()
            worker.send_nowait([Cancel(stream=1)])
        stopped = await recorder.stop(worker)
        assert (stopped.state, stopped.incarnation) == (WorkerState.STOPPED, 2)


async def test_watchers_are_notified_of_the_end_of_a_grace_while_the_worker_still_runs() -> None:
    async with supervised("slow_drain") as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        worker.ref.tell(RestartWorker(0.05, 60.0))
        await recorder.until(lambda: recorder.graces == [1])
        assert worker.status.state is WorkerState.DRAINING
        worker.send_nowait([Cancel(stream=1)])  # as the router does
        assert (await recorder.until_state(WorkerState.READY)).incarnation == 2
    assert recorder.graces == [1]


async def test_a_flood_on_stderr_is_bounded_and_holds_nobody_up() -> None:
    with structlog.testing.capture_logs() as logs:
        async with supervised("flood") as (worker, recorder):
            await recorder.until_state(WorkerState.READY)
            worker.ref.tell(StopWorker())
            await recorder.until_state(WorkerState.STOPPED)
    said = [line["text"] for line in logs if line["event"] == "worker_output"]
    assert len(said) < 25_000
    assert any("lines left out" in text for text in said)
    assert max(map(len, said)) <= 8192


async def test_worker_logs_are_carried_with_the_worker_s_name() -> None:
    with structlog.testing.capture_logs() as logs:
        async with supervised("logs") as (_, recorder):
            await recorder.until_state(WorkerState.READY)
    carried = [line for line in logs if line["event"] in ("from_worker", "worker_output")]
    assert carried == [
        {"event": "from_worker", "log_level": "warning", "answer": 42, "worker": "w", "incarnation": 1},
        {"event": "worker_output", "log_level": "info", "text": "plain  [31mtext", "worker": "w", "incarnation": 1},
    ]


async def test_a_watcher_that_raises_is_logged_and_passed_over() -> None:
    class Fragile(Recorder):
        def handle(self, message: WorkerNotice | Terminated) -> None:
            super().handle(message)
            if isinstance(message, WorkerEvent) and not isinstance(message.event, Heartbeat):
                raise LookupError("a bug")

    with structlog.testing.capture_logs() as logs:
        async with supervised("good", recorder=Fragile()) as (worker, recorder):
            await recorder.until_state(WorkerState.READY)
            worker.send_nowait([submit()])
            await recorder.until(lambda: len(recorder.events) == 2)
    failed = [line for line in logs if line["event"] == "actor_failed"]
    assert [(line["actor"], line["at"], str(line["exc_info"])) for line in failed] == [
        ("recorder", "WorkerEvent", "a bug")
    ] * 2


async def test_a_message_with_as_many_frames_as_it_may_have_reaches_the_watchers_whole() -> None:
    async with supervised("most_frames") as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        await recorder.until(lambda: len(recorder.events) == MAX_FRAMES_PER_MESSAGE)
        assert recorder.lost == []


async def test_a_full_link_makes_the_worker_unavailable() -> None:
    large = Submit(
        stream=2, request="r", input=TokensInput(tokens=(70_000,) * 10_000), sampling=Sampling(), limits=Limits()
    )
    async with supervised("stopped_process", deadlines=replace(PATIENT, term=0.2)) as (worker, recorder):
        await recorder.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        with pytest.raises(WorkerUnavailable, match="messages wait already"):
            _send_for_ever(worker, large)


def _send_for_ever(worker: WorkerRef, command: Command) -> None:
    for _ in range(100_000):
        worker.send_nowait([command])


ORPHANS = ["good"] + (["hangs_for_good"] if sys.platform == "linux" else [])


@pytest.mark.parametrize("mode", ORPHANS)
def test_a_gateway_killed_by_force_leaves_no_worker(mode: str, tmp_path: Path) -> None:
    gateway = subprocess.Popen([sys.executable, str(HERE / "fake_gateway.py"), mode], stdout=subprocess.PIPE)
    assert gateway.stdout is not None
    with gateway, gateway.stdout:
        pid = int(gateway.stdout.readline())
        gateway.kill()
    wait_gone(pid)
    sweep([str(tmp_path)])  # nobody was left to remove its folder
