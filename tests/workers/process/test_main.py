"""`python -m workers` from outside: command line, signals, and its exit when the gateway goes."""

import asyncio
import gc
import os
import signal
import subprocess
import sys

import pytest

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from protocol.commands import Stop, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import Bye, Failed, Finished, Hello
from tests.workers.process.harness.gateway_peer import PATIENCE_S, SLOW, Peer, command, scripted, submit, with_worker
from workers.__main__ import EXIT_USAGE, GC_THRESHOLD, SpecRefused, decode_spec, load_and_freeze
from workers.faults.plan import Fault
from workers.process.exit_codes import EXIT_CODES
from workers.process.spec import WorkerSpec


@with_worker(process=True, name="w7")
async def test_a_whole_life(peer: Peer) -> None:
    hello = await peer.expect(Hello)
    assert (hello.worker, hello.pid) == ("w7", peer.process.pid)
    await peer.ready()
    peer.send(submit(1, max_tokens=3))
    assert isinstance(await peer.terminal(1), Finished)
    peer.send(Stop())
    assert (await peer.bye()).reason is ByeReason.STOPPED
    assert await peer.exit_code() == 0


def test_after_the_load_garbage_is_collected_as_before_but_not_among_older_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thresholds, loaded = gc.get_threshold(), object()
    monkeypatch.setattr("workers.__main__.load", lambda spec, progress: loaded)
    gc.set_threshold(200_000)
    try:
        assert load_and_freeze(WorkerSpec("w0", "tiny", ""), lambda *_: None) is loaded
        assert gc.get_threshold()[0] == GC_THRESHOLD
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def test_rich_is_not_imported() -> None:
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "workers", "--help"], capture_output=True, text=True, timeout=60
    )
    assert listed.returncode == 0
    assert "structlog.dev" in listed.stderr
    assert "rich.console" not in listed.stderr


@with_worker(process=True, **SLOW)
async def test_sigterm_stops_and_ctrl_c_is_ignored(peer: Peer) -> None:
    """Ctrl-C in a terminal reaches all processes, but the gateway decides when workers stop."""
    await peer.ready()
    peer.process.send_signal(signal.SIGINT)
    peer.send(submit(1))
    await peer.until(lambda: peer.tokens(1))
    peer.process.send_signal(signal.SIGTERM)
    assert getattr(await peer.terminal(1), "code", None) is ErrorCode.DRAINING
    assert (await peer.bye()).reason is ByeReason.STOPPED
    assert await peer.exit_code() == 0


@with_worker(process=True, **SLOW)
async def test_the_end_of_stdin_is_the_end(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1))
    await peer.until(lambda: peer.tokens(1))
    peer.close_stdin()
    assert getattr(await peer.terminal(1), "code", None) is ErrorCode.LOST
    assert (await peer.bye()).reason is ByeReason.ORPHANED
    assert await peer.exit_code() == EXIT_CODES[ByeReason.ORPHANED]


@with_worker(process=True, tokens_per_second=1 / 1800)
async def test_an_engine_inside_the_device_does_not_delay_the_exit(peer: Peer) -> None:
    """During a step of half an hour the worker still sends `Bye` and exits."""
    await peer.ready()
    peer.send(submit(1))
    await peer.until(lambda: peer.tokens(1))
    peer.close_stdin()
    assert (await peer.bye()).reason is ByeReason.ORPHANED
    assert await peer.exit_code() == EXIT_CODES[ByeReason.ORPHANED]


@with_worker(process=True, faults=(Fault("fail_load"),))
async def test_a_failed_load_has_its_exit_code(peer: Peer) -> None:
    peer.send(Welcome((await peer.expect(Hello)).incarnation))
    assert (await peer.bye()).reason is ByeReason.LOAD_FAILED
    assert await peer.exit_code() == EXIT_CODES[ByeReason.LOAD_FAILED]


@with_worker(process=True, **SLOW)
async def test_a_killed_worker_sends_nothing(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1))
    await peer.until(lambda: peer.tokens(1))
    peer.process.kill()
    assert await peer.exit_code() == -signal.SIGKILL
    await peer.until(lambda: peer.lost)
    assert not any(isinstance(frame, Finished | Failed | Bye) for frame in peer.frames)


class TestCommandLine:
    @pytest.mark.parametrize(
        ("spec", "names"),
        [
            ("{", "truncated"),
            ("{}", "name"),
            ('{"name": "w", "model_name": "m", "model_path": "", "max_batch_size": 0}', "max_batch_size"),
            ('{"name": "w", "model_name": "m", "model_path": "", "colour": 1}', "colour"),
            ('{"name": "w", "model_name": "m", "model_path": "", "backend": ""}', "backend"),
            ('{"name": "\\ud800', "spec"),
        ],
    )
    def test_a_wrong_spec_names_its_field(self, spec: str, names: str) -> None:
        with pytest.raises(SpecRefused, match=names):
            decode_spec(spec)

    def test_a_whole_spec(self) -> None:
        assert decode_spec('{"name": "w", "model_name": "m", "model_path": "p"}') == WorkerSpec("w", "m", "p")

    @pytest.mark.parametrize(
        ("endpoint", "spec"),
        [("ipc:///nowhere", "{}"), ("http://x", scripted()), ("ipc:///nowhere", scripted(log_level="loud"))],
        ids=["spec", "endpoint", "log-level"],
    )
    def test_bad_arguments_exit_with_two(self, endpoint: str, spec: WorkerSpec | str) -> None:
        ended = subprocess.run(command(endpoint, spec), stdin=subprocess.PIPE, capture_output=True, timeout=60)
        assert ended.returncode == EXIT_USAGE, ended.stderr

    def test_no_gateway_at_the_address(self) -> None:
        with LocalEndpoint() as endpoint:
            ended = subprocess.run(
                command(endpoint.address, scripted()), stdin=subprocess.PIPE, capture_output=True, timeout=60
            )
        assert ended.returncode == EXIT_CODES[ByeReason.ORPHANED], ended.stderr

    def test_a_scripted_worker_imports_nothing_heavy(self) -> None:
        """It must start within tenths of a second, because gateway tests start many."""
        code = (
            "import sys, workers.__main__, workers.process.backends, workers.scripted.runner\n"
            "print(*{name.partition('.')[0] for name in sys.modules})"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
        heavy = {"jax", "iree", "mlx", "mlx_lm", "transformers", "tokenizers", "torch", "jinja2", "starlette"}
        assert heavy.isdisjoint(ended.stdout.decode().split())


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watches the exit of a process that is not its child")
def test_a_killed_gateway_leaves_no_worker() -> None:
    """The parent is killed without notice, and the worker exits by itself."""
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )

    async def scenario() -> None:
        with LocalEndpoint() as endpoint:
            hello, gone = asyncio.Event(), asyncio.Event()
            link = Link.bind(endpoint.address, lambda _: hello.set(), on_lost=lambda _: gone.set())
            arguments = [sys.executable, "-c", parent, *command(endpoint.address, scripted())]
            process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
            assert process.stdout is not None
            worker = os.pidfd_open(int(await process.stdout.readline()))
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await hello.wait()
                    process.kill()
                    await process.wait()
                    exited = asyncio.Event()
                    loop.add_reader(worker, exited.set)
                    await exited.wait()
                    await gone.wait()
            finally:
                loop.remove_reader(worker)
                os.close(worker)
                link.close(0.0)

    asyncio.run(scenario())
