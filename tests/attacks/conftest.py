"""Fixtures of the attacks."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attacks.server import START_S, AttackedServer, attacked_server

LONGEST_TURN_MS = 50.0
"""CPU time that one turn of the gateway's event loop may take, under any attack."""


class SharedServers:
    """Owns one server for each set of options and variables, until the last attack has ended."""

    def __init__(self, stack: ExitStack, folders: pytest.TempPathFactory) -> None:
        self._stack = stack
        self._folders = folders
        self._started: dict[tuple[object, ...], AttackedServer] = {}

    def with_options(self, *options: str, **environment: str) -> AttackedServer:
        """Return the idle server with these options and variables. It is started if no attack has used it, and if the
        last one has ended it."""
        key = (options, tuple(sorted(environment.items())))
        server = self._started.get(key)
        if server is None or server.process.poll() is not None:
            folder: Path = self._folders.mktemp("server")
            server = self._stack.enter_context(attacked_server(folder, *options, **environment))
            self._started[key] = server
        return server


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    """The servers that attacks share if they change nothing that others could notice."""
    with ExitStack() as stack:
        yield SharedServers(stack, tmp_path_factory)


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedServer]:
    """One server for all attacks of a module. With the options, settings or variables in its `OPTIONS` and
    `GATEWAY_SETTINGS`, or with `OWN_SERVER`, it is of the module alone."""
    options: tuple[str, ...] = getattr(request.module, "OPTIONS", ())
    settings: dict[str, object] = getattr(request.module, "GATEWAY_SETTINGS", {})
    if not (options or settings or getattr(request.module, "OWN_SERVER", False)):
        servers: SharedServers = request.getfixturevalue("servers")
        yield servers.with_options()
        return
    folder = tmp_path_factory.mktemp("server")
    with attacked_server(folder, *options, ATTACKED_SETTINGS=json.dumps(settings)) as server:
        yield server


@pytest.fixture
def server(module_server: AttackedServer) -> Iterator[AttackedServer]:
    """The server of the module. After each attack it lives, is idle, and no turn of its event loop was long."""
    module_server.forget_turns()
    yield module_server
    assert module_server.process.poll() is None, module_server.log.read_text()
    assert module_server.is_live()
    turn = module_server.longest_turn
    assert turn.cpu_ms < LONGEST_TURN_MS, f"{turn.ran} held the event loop for {turn.cpu_ms} ms of CPU time"
    assert_idle(module_server)


def assert_idle(server: AttackedServer, within_s: float = START_S) -> None:
    """Wait until an attack that ended has left no sequence on the server: its clients may have gone just now."""
    deadline = time.monotonic() + within_s
    while left := server.live_sequences:
        assert time.monotonic() < deadline, f"the attack left {left} sequences"
        time.sleep(0.02)


@pytest.fixture
def anyio_backend() -> str:
    """The gateway runs on asyncio: its links and its server do."""
    return "asyncio"
