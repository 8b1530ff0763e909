"""Processes that want a gateway to leave, or that wait on its port for the one which takes its place."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks.server import HOST, ROOT, AttackedServer, attacked_server

JSON = {"content-type": "application/json"}
KEY = "the-admin-key"
PYTHON = "/usr/bin/python3"
"""A program that another user can run."""
OWN_SERVER = True
"""Another process takes its socket."""
OTHER_USER = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(PYTHON).exists(), reason="only root runs processes of other users"
)


@pytest.mark.parametrize("key", ["", KEY], ids=["keyless", "with the key"])
def test_no_request_makes_a_gateway_leave(tmp_path: Path, key: str) -> None:
    environment = {"BATON_ADMIN_KEY": key} if key else {}
    headers = JSON | ({"authorization": f"Bearer {key}"} if key else {})
    with attacked_server(tmp_path, **environment) as server:
        bodies = {"/leave": json.dumps({"pid": server.process.pid}), "/offer": "{}", "": "{}"}
        answers = {
            path: server.request("POST", f"/admin/gateway{path}", body, headers)[0] for path, body in bodies.items()
        }
        assert answers == {"/leave": 404, "/offer": 404, "": 405}
        assert server.is_live()
        assert server.request("GET", "/health/ready")[0] == 200
        assert "hands_over" not in server.log.read_text()


class Impostor:
    """A process on the port that answers as an old gateway would, and keeps what it receives."""

    def __init__(self, folder: Path) -> None:
        self.received = b""
        self._folder = folder
        self._listeners = [socket.create_server((HOST, 0))]
        self.port: int = self._listeners[0].getsockname()[1]
        for name in ("l", "h"):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(folder / name))
            listener.listen()
            self._listeners.append(listener)
        answers = [self._offer, self._give, self._accept]
        for listener, answer in zip(self._listeners, answers, strict=True):
            threading.Thread(target=self._serve, args=(listener, answer), daemon=True).start()

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _serve(self, listener: socket.socket, answer: object) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    answer(connection)  # type: ignore[operator]
                except OSError:
                    continue

    def _offer(self, connection: socket.socket) -> None:
        self.received += connection.recv(65536)
        paths = {"listener": str(self._folder / "l"), "http": str(self._folder / "h")}
        body = json.dumps({"pid": os.getpid(), **paths}).encode()
        connection.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    def _give(self, connection: socket.socket) -> None:
        with socket.create_server((HOST, 0)) as other:
            socket.send_fds(connection, [b"l"], [other.fileno()])

    def _accept(self, connection: socket.socket) -> None:
        self.received += connection.recv(65536)
        connection.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}")


@contextmanager
def impostor() -> Iterator[Impostor]:
    with tempfile.TemporaryDirectory() as folder:
        made = Impostor(Path(folder))
        try:
            yield made
        finally:
            made.close()


def take_over(port: int, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a gateway that takes the place of the one on the port; it fails, or is ended after some seconds."""
    command = [sys.executable, "-m", "cli", "serve", "--backend", "scripted", "--port", str(port), "--take-over"]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_impostor_on_the_port_gets_neither_the_key_nor_anything_else() -> None:
    with impostor() as other:
        ended = take_over(other.port, BATON_ADMIN_KEY=KEY, BATON_API_KEY="the-api-key")
        assert ended.returncode == 1
        assert "does not hand over" in ended.stderr
        assert other.received == b""


@OTHER_USER
def test_a_socket_of_another_user_is_no_predecessor() -> None:
    """Another user makes a folder with the name of a gateway's, and listens there and on the port."""
    program = """
import os, socket, sys, tempfile
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
folder = tempfile.mkdtemp(prefix=f"baton-gateway-{port}-", dir="/tmp")
os.chmod(folder, 0o700)
control = socket.socket(socket.AF_UNIX)
control.bind(folder + "/link")
control.listen()
print(port, flush=True)
connection, _ = control.accept()
print("received", connection.recv(65536), flush=True)
"""
    with subprocess.Popen(
        [PYTHON, "-c", program], stdout=subprocess.PIPE, text=True, user=65534, group=65534, extra_groups=[]
    ) as other:
        assert other.stdout is not None
        try:
            port = int(other.stdout.readline())
            ended = take_over(port, BATON_ADMIN_KEY=KEY)
            assert (ended.returncode, other.poll()) == (1, None)
            assert "does not hand over" in ended.stderr
        finally:
            other.kill()
        assert other.stdout.read() == ""


@OTHER_USER
def test_another_user_cannot_take_the_socket(tmp_path: Path, server: AttackedServer) -> None:
    program = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
"""
    (folder,) = Path(tempfile.gettempdir()).glob(f"baton-gateway-{server.port}-*")
    command = [PYTHON, "-c", program, str(folder / "link")]
    tried = subprocess.run(command, capture_output=True, text=True, user=65534, group=65534, extra_groups=[])
    assert "PermissionError" in tried.stderr
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (os.geteuid(), 0o700)


def test_a_process_that_takes_the_socket_and_dies_changes_nothing(server: AttackedServer) -> None:
    (folder,) = Path(tempfile.gettempdir()).glob(f"baton-gateway-{server.port}-*")
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(folder / "link"))
            connection.sendall(b'{"step":"leave"}\n')
            assert b"has not taken" in connection.recv(4096)
            connection.sendall(b'{"step":"take"}\n')
            _, descriptors, _, _ = socket.recv_fds(connection, 4096, 1)
            os.close(descriptors[0])
    assert server.request("GET", "/health/ready")[0] == 200


def test_nonsense_on_the_private_socket_ends_only_its_connection(server: AttackedServer) -> None:
    (folder,) = Path(tempfile.gettempdir()).glob(f"baton-gateway-{server.port}-*")
    for raw in (b"x" * 100_000, b"{}\n", b'{"step":"other"}\n', b"\xff\n", b""):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(folder / "link"))
            try:
                connection.sendall(raw)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(4096) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass  # it is closed, with bytes unread
        assert server.is_live(), raw


def test_keys_change_with_a_new_gateway(tmp_path: Path) -> None:
    """The old gateway's key need not be known: a process of the same user is what it trusts."""
    with attacked_server(tmp_path, BATON_API_KEY="old") as old:
        command = [sys.executable, "-m", "cli", "serve", "--backend", "scripted", "--take-over"]
        environment = os.environ | {"BATON_API_KEY": "new", "BATON_PORT": str(old.port), "BATON_LOG_LEVEL": "info"}
        log = tmp_path / "new.log"
        with log.open("wb") as file:
            new = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
        try:
            assert old.process.wait(60) == 0
            status, answer = old.request("GET", "/admin/gateway", headers={"authorization": "Bearer new"})
            assert (status, json.loads(answer)) == (200, {"pid": new.pid})
            assert old.request("GET", "/v1/models", headers={"authorization": "Bearer old"})[0] == 401
            assert re.search(rf"took_over.*{old.process.pid}|{old.process.pid}.*took_over", log.read_text())
        finally:
            new.terminate()
            new.wait(30)
