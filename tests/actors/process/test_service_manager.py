"""Messages to the service manager, received on a real socket."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from actors.process.service_manager import ServiceManager

pytestmark = pytest.mark.anyio
OWN = f"MAINPID={os.getpid()}"


@pytest.fixture(params=["a path", "an abstract name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The value of $NOTIFY_SOCKET, and the socket."""
    name = str(tmp_path / "notify") if request.param == "a path" else f"@baton-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        receiver.setblocking(False)
        yield name, receiver


def received(receiver: socket.socket) -> list[list[str]]:
    messages = []
    while True:
        try:
            messages.append(receiver.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return messages


def test_each_state_is_sent_once(manager: tuple[str, socket.socket]) -> None:
    name, receiver = manager
    made = ServiceManager({"NOTIFY_SOCKET": name})
    for state in (made.ready, made.ready, made.hands_over, made.stopping, made.stopping):
        state()
    first, second, third = received(receiver)
    assert first[:2] == ["READY=1", OWN]
    assert second[0].startswith("STATUS=")
    assert third[0] == "STOPPING=1"


def test_without_a_socket_nothing_is_sent() -> None:
    made = ServiceManager({"WATCHDOG_USEC": "1000000"})
    with capture_logs() as logged:
        made.ready()
        made.stopping()
    assert (made.watchdog_s, logged) == (0.0, [])


def test_a_socket_that_is_gone_is_logged(tmp_path: Path) -> None:
    made = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")})
    with capture_logs() as logged:
        made.ready()
    ((event, message),) = [(line["event"], line["message"]) for line in logged]
    assert (event, message) == ("service_manager_not_notified", "READY=1")


async def test_states_that_are_not_taken_are_sent_again_in_their_order(
    manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of the socket is full, as that of a service manager which is busy."""
    monkeypatch.setattr("actors.process.service_manager.AGAIN_S", 0.005)
    name, receiver = manager
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood:
        flood.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                flood.sendto(b"full", receiver.getsockname())
    made = ServiceManager({"NOTIFY_SOCKET": name})
    with capture_logs() as logged:
        made.ready()
        made.hands_over()
        async with anyio.create_task_group() as group:
            group.start_soon(made.keep_alive)
            await anyio.sleep(0.02)
            states: list[str] = []
            while len(states) < 2:  # the time limit of the test ends a wait in vain
                states += [each[0] for each in received(receiver) if each != ["full"]]
                await anyio.sleep(0.002)
            made.ready()
            await anyio.sleep(0.02)
            group.cancel_scope.cancel()
    assert states == ["READY=1", "STATUS=Another gateway has taken over; finishes the requests that it has"]
    assert received(receiver) == [], "each is taken once"
    assert [(line["event"], line["message"]) for line in logged] == [("service_manager_not_notified", "READY=1")]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "own"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "0"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
    ids=str,
)
def test_the_watchdog_is_that_of_this_process(environment: dict[str, str], seconds: float) -> None:
    own = {key: value.replace("own", str(os.getpid())) for key, value in environment.items()}
    assert ServiceManager({"NOTIFY_SOCKET": "/n", **own}).watchdog_s == seconds


async def test_signs_of_life_are_given_until_the_end(manager: tuple[str, socket.socket]) -> None:
    name, receiver = manager
    made = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"})
    async with anyio.create_task_group() as group:
        group.start_soon(made.keep_alive)
        signs = 0
        while signs < 3:  # the time limit of the test ends a wait in vain
            signs += received(receiver).count(["WATCHDOG=1"])
            await anyio.sleep(0.005)
        group.cancel_scope.cancel()


async def test_without_a_watchdog_no_signs_are_given(
    manager: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.process.service_manager.AGAIN_S", 0.002)
    name, receiver = manager
    with anyio.move_on_after(0.02):
        await ServiceManager({"NOTIFY_SOCKET": name}).keep_alive()
    assert received(receiver) == []


async def test_without_a_service_manager_it_gives_no_signs_of_life() -> None:
    await ServiceManager({"WATCHDOG_USEC": "20000"}).keep_alive()
