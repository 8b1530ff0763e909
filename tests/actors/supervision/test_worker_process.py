"""Supervision of real child processes: their start, what they say, and their end when they are asked to."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
import structlog

from actors.supervision.policy import RestartPolicy
from actors.supervision.worker_process import WorkerProcess, WorkerState, WorkerUnavailable
from actors.transport.endpoint import sweep
from protocol.commands import Cancel, Command, Submit
from protocol.events import Event, Finished, Heartbeat, Step
from protocol.request import Limits, Sampling, TokensInput
from tests.actors.supervision.processes import (
    HERE,
    PATIENT,
    Recorder,
    fake_worker,
    make,
    running,
    submit,
    wait_gone,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_sockets")]


async def test_a_worker_serves_and_stops_when_asked() -> None:
    worker, heard = make("good")
    with pytest.raises(WorkerUnavailable, match="stopped"):
        worker.send_nowait([submit()])
    async with running(worker, heard):
        status = await heard.until_state(WorkerState.READY)
        assert (status.incarnation, status.restarts, status.reason) == (1, 0, "")
        assert status.hello is not None
        assert status.hello.pid == status.pid
        worker.send_nowait([submit(1), submit(2)])
        await heard.until(lambda: len(heard.events) == 4)
        worker.stop_nowait()
        await heard.until_state(WorkerState.STOPPED)
    assert [type(event) for _, event in heard.events] == [Step, Finished, Step, Finished]
    assert heard.lost == [(1, "stopped")]
    assert heard.states == [
        WorkerState.STARTING,
        WorkerState.LOADING,
        WorkerState.READY,
        WorkerState.DRAINING,
        WorkerState.STOPPED,
    ]
    assert worker.status.pid is None


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="another process's environment is read from /proc")
async def test_a_worker_does_not_get_the_servers_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_API_KEY", "secret")
    monkeypatch.setenv("BATON_TEST_OTHER", "handed-on")
    worker, heard = make("good")
    async with running(worker, heard):
        status = await heard.until_state(WorkerState.READY)
        environment = await anyio.Path(f"/proc/{status.pid}/environ").read_bytes()
    assert b"BATON_TEST_OTHER=handed-on" in environment
    assert b"BATON_API_KEY" not in environment


async def test_a_socket_file_lives_only_until_the_worker_has_come(tmp_path: Path) -> None:
    worker, heard = make("good")
    async with running(worker, heard):
        await heard.until(lambda: bool(heard.states))
        assert len(os.listdir(tmp_path)) == 1
        await heard.until_state(WorkerState.READY)
        assert os.listdir(tmp_path) == []
        worker.send_nowait([submit()])
        await heard.until(lambda: len(heard.events) == 2)


async def test_a_cancel_lets_a_willing_worker_leave_by_itself() -> None:
    worker, heard = make("good")
    with structlog.testing.capture_logs() as logs:
        async with running(worker, heard) as group:
            await heard.until_state(WorkerState.READY)
            group.cancel_scope.cancel()
    assert heard.lost == [(1, "stopped")]
    assert WorkerState.BACKOFF not in heard.states
    assert [line["status"] for line in logs if line["event"] == "worker_exited"] == [0]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_a_cancel_at_any_moment_leaves_nothing(turns: int) -> None:
    descriptors = len(os.listdir("/dev/fd"))
    worker, heard = make("good", deadlines=replace(PATIENT, term=0.2))
    async with running(worker, heard):
        for _ in range(turns):
            await asyncio.sleep(0)
    assert worker.status.state is WorkerState.STOPPED
    assert worker.status.pid is None
    assert len(os.listdir("/dev/fd")) == descriptors


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_worker_that_ignores_everything_is_killed(how: str) -> None:
    worker, heard = make("deaf", deadlines=replace(PATIENT, stop=0.3, term=0.2))
    async with running(worker, heard) as group:
        await heard.until_state(WorkerState.READY)
        if how == "stop":
            worker.stop_nowait()
            await heard.until_state(WorkerState.STOPPED)
        else:
            group.cancel_scope.cancel()
    assert worker.status.state is WorkerState.STOPPED
    assert heard.lost == [(1, "stopped")]


async def test_a_draining_worker_takes_only_cancels_and_loses_nothing() -> None:
    worker, heard = make("slow_drain")
    async with running(worker, heard):
        await heard.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        worker.drain_nowait(30.0)
        assert worker.status.state is WorkerState.DRAINING
        with pytest.raises(WorkerUnavailable, match="draining"):
            worker.send_nowait([Cancel(stream=1), submit(2)])
        worker.send_nowait([Cancel(stream=1)])  # this fake finishes, and leaves, when it is cancelled
        await heard.until_state(WorkerState.STOPPED)
    assert [type(event) for _, event in heard.events] == [Finished]


async def test_a_drain_that_takes_too_long_ends_by_force() -> None:
    worker, heard = make("deaf", deadlines=replace(PATIENT, stop=0.2, term=0.2))
    async with running(worker, heard):
        await heard.until_state(WorkerState.READY)
        worker.drain_nowait(0.1)
        await heard.until_state(WorkerState.STOPPED)


@pytest.mark.parametrize("mode", ["silent_start", "stuck_loading"])
async def test_a_worker_is_stopped_before_it_is_ready(mode: str) -> None:
    worker, heard = make(mode, deadlines=replace(PATIENT, term=0.2))
    async with running(worker, heard):
        await heard.until_state(WorkerState.STARTING if mode == "silent_start" else WorkerState.LOADING)
        worker.drain_nowait(1000.0)
        await heard.until_state(WorkerState.STOPPED)


async def test_a_stop_while_it_waits_for_its_restart() -> None:
    worker, heard = make("exits", policy=RestartPolicy(first_delay_s=3600, max_delay_s=3600))
    async with running(worker, heard):
        await heard.until_state(WorkerState.BACKOFF)
        worker.stop_nowait()
        await heard.until_state(WorkerState.STOPPED)
    assert worker.status.incarnation == 1


async def test_a_stop_before_the_run_keeps_it_from_starting() -> None:
    worker, heard = make("good")
    worker.stop_nowait()
    await worker.run()
    assert heard.statuses == []


async def test_a_flood_on_stderr_is_bounded_and_holds_nobody_up() -> None:
    worker, heard = make("flood")
    with structlog.testing.capture_logs() as logs:
        async with running(worker, heard):
            await heard.until_state(WorkerState.READY)
            worker.stop_nowait()
            await heard.until_state(WorkerState.STOPPED)
    said = [line["text"] for line in logs if line["event"] == "worker_output"]
    assert len(said) < 25_000
    assert any("lines left out" in text for text in said)
    assert max(map(len, said)) <= 8192


async def test_worker_logs_are_carried_with_the_worker_s_name() -> None:
    worker, heard = make("logs")
    with structlog.testing.capture_logs() as logs:
        async with running(worker, heard):
            await heard.until_state(WorkerState.READY)
    carried = [line for line in logs if line["event"] in ("from_worker", "worker_output")]
    assert carried == [
        {"event": "from_worker", "log_level": "warning", "answer": 42, "worker": "w", "incarnation": 1},
        {"event": "worker_output", "log_level": "info", "text": "plain  [31mtext", "worker": "w", "incarnation": 1},
    ]


async def test_a_listener_that_raises_is_logged_and_passed_over() -> None:
    class Fragile(Recorder):
        def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
            super().worker_event(worker, incarnation, event)
            if not isinstance(event, Heartbeat):
                raise LookupError("a defect")

    heard = Fragile()
    worker = WorkerProcess("w", fake_worker("good"), heard, deadlines=PATIENT)
    with structlog.testing.capture_logs() as logs:
        async with running(worker, heard):
            await heard.until_state(WorkerState.READY)
            worker.send_nowait([submit()])
            await heard.until(lambda: len(heard.events) == 2)
    assert len([line for line in logs if line["event"] == "listener_failed"]) == 2


async def test_a_full_link_makes_the_worker_unavailable() -> None:
    worker, heard = make("stopped_process", deadlines=replace(PATIENT, term=0.2))
    large = Submit(
        stream=2, request="r", input=TokensInput(tokens=(70_000,) * 10_000), sampling=Sampling(), limits=Limits()
    )
    async with running(worker, heard):
        await heard.until_state(WorkerState.READY)
        worker.send_nowait([submit()])
        with pytest.raises(WorkerUnavailable, match="messages wait already"):
            _send_for_ever(worker, large)


def _send_for_ever(worker: WorkerProcess, command: Command) -> None:
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
