"""Notifications of the commands that serve to systemd, on a real socket."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands.test_serve import DEADLINE_S, SERVE, read_until, serving
from tests.cli.joining import joining_commands
from tests.ports import port_for_later


class Notifications:
    """The socket of a service manager."""

    def __init__(self, path: Path) -> None:
        self.environment = {"NOTIFY_SOCKET": str(path)}
        self._receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.bind(str(path))

    def until(self, assignment: str) -> list[str]:
        """All assignments up to the message that has this one. Fails when it does not come."""
        self._receiver.settimeout(DEADLINE_S)
        seen: list[str] = []
        while assignment not in seen:
            seen += self._receiver.recv(4096).decode().split("\n")
        return seen

    def rest(self) -> list[str]:
        """All that has come since."""
        self._receiver.setblocking(False)
        seen: list[str] = []
        while True:
            try:
                seen += self._receiver.recv(4096).decode().split("\n")
            except BlockingIOError:
                return seen

    def close(self) -> None:
        self._receiver.close()


@contextmanager
def notifications(path: Path) -> Iterator[Notifications]:
    made = Notifications(path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("watched", [True, False])
def test_serve_is_ready_when_it_answers_and_says_when_it_stops(tmp_path: Path, watched: bool) -> None:
    with notifications(tmp_path / "notify") as manager:
        environment = manager.environment | ({"WATCHDOG_USEC": "1000000"} if watched else {})
        with serving(SERVE, environment) as process:
            read_until(process, "ready")
            assert f"MAINPID={process.pid}" in manager.until("READY=1")
            if watched:
                manager.until("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        rest = manager.rest()
        assert "STOPPING=1" in rest
        assert "READY=1" not in rest
        assert watched or "WATCHDOG=1" not in rest


def test_a_take_over_is_ready_late_and_the_old_gateway_does_not_stop_its_unit(tmp_path: Path) -> None:
    arguments = [*SERVE[:-2], "--port", str(port_for_later())]
    with notifications(tmp_path / "old") as old, notifications(tmp_path / "new") as new:
        with serving(arguments, old.environment) as first:
            old.until("READY=1")
            with serving([*arguments, "--take-over"], new.environment) as second:
                assert f"MAINPID={second.pid}" in new.until("READY=1")
                assert first.wait(DEADLINE_S) == 0
                second.send_signal(signal.SIGTERM)
                assert second.wait(DEADLINE_S) == 0
        # It would get a time limit by that, and its requests have none.
        assert "STOPPING=1" not in old.rest()
        assert "STOPPING=1" in new.rest()


def test_a_server_without_workers_is_ready_before_its_workers_are(tmp_path: Path) -> None:
    gateway, worker = joining_commands(tmp_path)
    with notifications(tmp_path / "gateway") as of_gateway, notifications(tmp_path / "worker") as of_worker:
        with serving(gateway, of_gateway.environment) as serves:
            of_gateway.until("READY=1")
            with serving(worker, of_worker.environment) as joins:
                assert f"MAINPID={joins.pid}" in of_worker.until("READY=1")
                joins.send_signal(signal.SIGTERM)
                assert joins.wait(DEADLINE_S) == 0
            serves.send_signal(signal.SIGTERM)
            assert serves.wait(DEADLINE_S) == 0
        assert "STOPPING=1" in of_worker.rest()
