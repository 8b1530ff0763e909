"""Fixtures of the attacks."""

import json
from collections.abc import Iterator

import pytest

from tests.attacks.server import AttackedServer, attacked_server

LONGEST_TURN_MS = 50.0
"""CPU time that one turn of the gateway's event loop may take, under any attack."""


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedServer]:
    """One server for all attacks of a module, with the options and the settings in its `OPTIONS` and
    `GATEWAY_SETTINGS`."""
    options: tuple[str, ...] = getattr(request.module, "OPTIONS", ())
    settings = json.dumps(getattr(request.module, "GATEWAY_SETTINGS", {}))
    with attacked_server(tmp_path_factory.mktemp("server"), *options, ATTACKED_SETTINGS=settings) as server:
        yield server


@pytest.fixture
def server(module_server: AttackedServer) -> Iterator[AttackedServer]:
    """The server of the module. After each attack it lives, and no turn of its event loop was long."""
    module_server.forget_turns()
    yield module_server
    assert module_server.process.poll() is None, module_server.log.read_text()
    assert module_server.is_live()
    turn = module_server.longest_turn
    assert turn.cpu_ms < LONGEST_TURN_MS, f"{turn.ran} held the event loop for {turn.cpu_ms} ms of CPU time"


@pytest.fixture
def anyio_backend() -> str:
    """The gateway runs on asyncio: its links and its server do."""
    return "asyncio"
