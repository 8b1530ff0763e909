"""The whole gateway from start to end: signals, grace, and what is left behind (nothing)."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from actors.supervision.deadlines import Deadlines
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerState, WorkerStatus
from gateway.daemon import WorkersGaveUp, run_daemon
from gateway.fleet.fleet import Fleet
from gateway.fleet.take_over import TakeOverFailed
from gateway.http.listener import BindError
from gateway.http.server import listen
from gateway.key_weights import CLASS_WEIGHTS, Priority
from gateway.keys.record import KeyLimits, make_key, make_record
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.scheduling import PriorityClass
from tests.gateway.harness.daemon import daemon
from tests.gateway.harness.real import launch
from tests.gateway.harness.serving import COMPLETION, events
from workers.faults.plan import Fault

pytestmark = pytest.mark.anyio

LONG = COMPLETION | {"max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
async def test_an_idle_gateway_ends_at_once(number: int) -> None:
    async with daemon(launch("a"), launch("b")) as (watched, _):
        os.kill(os.getpid(), number)
        await watched.ended.wait()


async def test_the_socket_folder_of_a_gateway_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    left = tmp_path / "baton-link-abcd_123"
    left.mkdir(0o700)
    async with daemon(launch("w0")):
        assert not left.exists()
        os.kill(os.getpid(), signal.SIGTERM)


async def test_a_terminal_that_closes_does_not_end_a_gateway_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with daemon(launch("w0")) as (_, client):
            os.kill(os.getpid(), signal.SIGHUP)
            assert (await client.get("/health/ready")).status_code == 200
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_live_streams_finish_within_the_grace_and_nothing_is_admitted() -> None:
    suspending = Deadlines(suspended=600, hang=600, heartbeat=600)
    async with daemon(launch("w0", rate=100), deadlines=suspending, shutdown_grace_s=600) as (watched, client):
        body = LONG | {"max_tokens": 60}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            (worker,) = watched.pids
            os.kill(worker, signal.SIGSTOP)  # the stream does not end before it has been looked at
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                ready = await client.get("/health/ready")
                if ready.status_code == 503:
                    break
            assert ready.json()["status"] == "draining"
            refused = await client.post("/v1/completions", json=COMPLETION)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            os.kill(worker, signal.SIGCONT)
            got = await events(response)
        assert got[-1] == "[DONE]"
        assert got[-2]["choices"][0]["finish_reason"] == "length"
        await watched.ended.wait()


async def test_the_gateway_waits_for_a_client_whose_connection_broke() -> None:
    body = LONG | {"max_tokens": 60, "stream_options": {"resume_s": 600}}
    async with daemon(launch("w0", rate=100), shutdown_grace_s=600) as (watched, client):
        async with client.stream("POST", "/v1/completions", json=body) as response:
            path = f"/v1/streams/{response.headers['x-stream-id']}"
        os.kill(os.getpid(), signal.SIGTERM)
        while (await client.get("/health/ready")).status_code == 200:
            pass
        async with client.stream("GET", path) as response:
            got = await events(response)
        assert got[-2]["choices"][0]["finish_reason"] == "length"
        await watched.ended.wait()


@pytest.mark.parametrize("how", ["no grace", "second signal"])
async def test_streams_that_outlive_the_grace_end_typed(how: str) -> None:
    grace = 0 if how == "no grace" else 3600
    async with daemon(launch("w0", rate=50), shutdown_grace_s=grace) as (_, client):
        async with client.stream("POST", "/v1/completions", json=LONG) as response:
            os.kill(os.getpid(), signal.SIGTERM)
            if how == "second signal":
                while (await client.get("/health/ready")).status_code == 200:
                    pass
                os.kill(os.getpid(), signal.SIGTERM)
            got = await events(response)
        assert got[-1] == "[DONE]"
        assert got[-2]["error"]["code"] == "draining"


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end() -> None:
    async with daemon(launch("w0"), shutdown_grace_s=0, flush_s=0.1) as (watched, _):
        host, port = watched.base.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as idle:
            await idle.send(b"POST /v1/completions HTTP/1.1\r\n")
            os.kill(os.getpid(), signal.SIGTERM)
            with anyio.fail_after(30):
                await watched.ended.wait()


async def test_a_worker_that_cannot_live_ends_the_gateway_with_its_reason() -> None:
    seen: list[WorkerStatus] = []
    policy = RestartPolicy(max_failures=2, first_delay_s=0.0)
    with structlog.testing.capture_logs() as logs, pytest.raises(WorkersGaveUp, match="worker w0: "):
        await run_daemon(
            GatewaySettings(port=0), [launch("w0", faults=(Fault("fail_load"),))], on_status=seen.append, policy=policy
        )
    assert seen[-1].state is WorkerState.GIVEN_UP
    errors = [line["event"] for line in logs if line["log_level"] == "error" and line.get("process") != "worker"]
    assert errors == []  # the error that is raised says it all


async def test_a_fleet_that_fails_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(Fleet, "_stop", fail)
    with structlog.testing.capture_logs() as logs:
        async with daemon(launch("w0")) as (watched, _):
            os.kill(os.getpid(), signal.SIGTERM)
            await watched.ended.wait()
    (line,) = [line for line in logs if line["event"] == "workers_have_not_ended"]
    assert line["reason"] == "AskFailed: actor 'fleet' failed on the message"


async def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with listen(GatewaySettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindError, match=str(port)):
            await run_daemon(GatewaySettings(port=port), [launch("w0")])


@pytest.mark.parametrize("folders", [0, 2])
async def test_the_removal_of_stale_sockets_is_logged_if_there_were_any(
    monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    monkeypatch.setattr("gateway.daemon.sweep", lambda: folders)
    with listen(GatewaySettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with structlog.testing.capture_logs() as logs, pytest.raises(BindError):
            await run_daemon(GatewaySettings(port=port), [launch("w0")])
    removed = [line["folders"] for line in logs if line["event"] == "stale_sockets_removed"]
    assert removed == ([folders] if folders else [])


async def test_the_router_weighs_clients_by_the_classes_of_their_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights: list[Callable[[str], float]] = []
    classes: list[Callable[[str], PriorityClass]] = []

    class WeighingRouter(Router):
        def __init__(
            self,
            settings: GatewaySettings,
            class_weight: Callable[[str], float],
            class_of: Callable[[str], PriorityClass],
        ) -> None:
            super().__init__(settings, class_weight, class_of)
            weights.append(class_weight)
            classes.append(class_of)

    monkeypatch.setattr("gateway.daemon.Router", WeighingRouter)
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(make_record("alice", make_key(), KeyLimits(priority=Priority.HIGH)).line())
    with listen(GatewaySettings(port=0)) as taken, pytest.raises(BindError):
        await run_daemon(GatewaySettings(port=taken.getsockname()[1], api_keys_file=str(keys)), [launch("w0")])
    assert [weight("alice") for weight in weights] == [CLASS_WEIGHTS[Priority.HIGH]]
    assert [class_of("alice") for class_of in classes] == ["high"]


class Nobody:
    """A predecessor that does not hand over."""

    pid = 0

    async def meet(self) -> int | None:
        raise TakeOverFailed("it does not")

    async def meet_unix(self) -> int | None:
        raise NotImplementedError

    async def relieve(self) -> bool:
        raise NotImplementedError

    async def gone(self) -> None:
        raise NotImplementedError

    def ask(self, method: str, target: str, headers: dict[str, str]) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("why", ["it does not", "no worker"])
async def test_a_failed_take_over_ends_with_a_reason(why: str) -> None:
    worker = launch("w0", faults=(Fault("refuse_load"),)) if why == "no worker" else launch("w0")
    seen: list[WorkerStatus] = []
    with pytest.raises(TakeOverFailed, match="worker w0: " if why == "no worker" else why):
        await run_daemon(GatewaySettings(port=0), [worker], on_status=seen.append, predecessor=Nobody())
    assert seen[-1].pid is None


async def test_an_end_during_a_take_over_rejects_no_client() -> None:
    leaves = anyio.Event()
    chosen = GatewaySettings(port=0, flush_s=0.1)
    given: list[int] = []

    class Interrupted(Nobody):
        async def meet(self) -> int | None:
            os.kill(os.getpid(), signal.SIGTERM)
            await leaves.wait()
            return given[0]

    def saw(status: WorkerStatus) -> None:
        if status.state in (WorkerState.DRAINING, WorkerState.STOPPED):
            leaves.set()

    with listen(chosen) as listener:
        given.append(os.dup(listener.fileno()))
        await run_daemon(chosen, [launch("w0")], on_status=saw, predecessor=Interrupted())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given[0])


PROGRAM = """
import anyio, sys
from gateway.daemon import run_daemon
from gateway.settings import GatewaySettings
from tests.gateway.harness.daemon import Watched, daemon
from tests.gateway.harness.real import launch

def status(status):
    print("state", status.state.value, status.pid, flush=True)

anyio.run(lambda: run_daemon(GatewaySettings(port=0), [launch("w0")], on_status=status))
"""


def start() -> "tuple[subprocess.Popen[str], int]":
    """The daemon in a process of its own, ready, and its worker's pid."""
    argv = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout or ():
        if line.startswith("state ready "):
            return process, int(line.split()[2])
    raise RuntimeError("it never became ready")


def lives(pid: int) -> bool:
    """It runs; a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see other processes")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)], ids=["TERM", "INT", "KILL"]
)
def test_no_worker_outlives_its_gateway(number: int, status: int) -> None:
    process, worker = start()
    with process:
        process.send_signal(number)
        assert process.wait(60) == status
    while lives(worker):
        time.sleep(0.02)
