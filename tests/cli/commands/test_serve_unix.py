"""`baton serve` on a Unix socket as a process: its commands, and take-overs."""

import json
import signal
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.cli.command_line import baton
from tests.cli.commands.test_serve import read_until, serving
from tests.ports import port_for_later

SERVE = ("-m", "cli", "serve", "--backend", "scripted")
ALONE = "--no-tcp"


def client(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=100)


def pid_of(path: Path) -> int:
    with client(path) as http:
        return int(http.get("/admin/gateway").json()["pid"])


def test_the_commands_reach_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "baton.sock"
    with serving([*SERVE, ALONE, "--unix-socket", str(path), "--unix-socket-mode", "660"]) as process:
        assert json.loads(read_until(process, "ready")[-1])["url"] == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for url in (f"unix:{path}", f"unix://{path}"):
            generated = baton("generate", "-p", "hi", "--no-chat-template", "-n", "3", "--url", url)
            assert generated.returncode == 0, generated.stderr
        listed = baton("admin", "workers", BATON_UNIX_SOCKET=str(path), BATON_TCP="false")
        assert (listed.returncode, "w0" in listed.stdout) == (0, True), listed.stderr
        with serving([*SERVE, ALONE, "--unix-socket", str(path)]) as second:
            _, refusal = second.communicate(timeout=100)
        assert second.returncode == 1
        assert "another process listens there" in " ".join(refusal.split())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=100) == 0
    assert not path.exists()
    # In a process of its own, for httpcore does not close a Unix socket that cannot be connected.
    with serving(["-m", "cli", "admin", "workers", "--url", f"unix:{path}"]) as gone:
        _, problem = gone.communicate(timeout=100)
    assert (gone.returncode, f"no server answers at unix:{path}" in " ".join(problem.split())) == (1, True)
    unnamed = baton("admin", "workers", "--url", "unix:")
    assert (unnamed.returncode, "has no path" in unnamed.stderr) == (1, True)


def test_a_socket_of_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "baton.sock"
    arguments = [*SERVE, ALONE, "--unix-socket", str(path)]
    with serving(arguments) as first:
        read_until(first, "ready")
    assert path.exists()
    with serving(arguments) as second:
        read_until(second, "ready")
        assert pid_of(path) == second.pid


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a port"])
def test_a_take_over_refuses_nobody_on_the_unix_socket(tmp_path: Path, beside: bool) -> None:
    path = tmp_path / "baton.sock"
    place: Sequence[str] = ("--port", str(port_for_later())) if beside else (ALONE,)
    arguments = [*SERVE, *place, "--unix-socket", str(path)]
    statuses: list[int] = []
    over = threading.Event()
    with serving(arguments) as first:
        read_until(first, "ready")
        assert pid_of(path) == first.pid

        def ask() -> None:
            while not over.is_set():
                with client(path) as http:
                    statuses.append(http.get("/health/live").status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            with serving([*arguments, "--take-over"]) as second:
                read_until(second, "ready")
                assert first.wait(timeout=100) == 0
                assert path.exists()
                assert pid_of(path) == second.pid
                over.set()
                asking.join()
                second.send_signal(signal.SIGTERM)
                assert second.wait(timeout=100) == 0
        finally:
            over.set()
            asking.join()
    assert set(statuses) == {200}
    assert not path.exists()


def test_a_successor_without_the_unix_socket_lets_it_go(tmp_path: Path) -> None:
    path, port = tmp_path / "baton.sock", port_for_later()
    arguments = [*SERVE, "--port", str(port)]
    with serving([*arguments, "--unix-socket", str(path)]) as first:
        read_until(first, "ready")
        with serving([*arguments, "--take-over"]) as second:
            read_until(second, "ready")
            assert first.wait(timeout=100) == 0
            assert not path.exists()
            assert httpx.get(f"http://127.0.0.1:{port}/health/live", trust_env=False).status_code == 200
