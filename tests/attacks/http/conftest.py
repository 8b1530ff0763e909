"""Fixtures of the attacks on connections."""

import json
from collections.abc import Iterator

import pytest

from tests.attacks.conftest import LONGEST_TURN_MS
from tests.attacks.server import AttackedServer, attacked_server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedServer]:
    """One server for all attacks of a module, with the options and the settings in its `OPTIONS` and
    `GATEWAY_SETTINGS`."""
    options: tuple[str, ...] = getattr(request.module, "OPTIONS", ())
    settings = json.dumps(getattr(request.module, "GATEWAY_SETTINGS", {}))
    with attacked_server(tmp_path_factory.mktemp("server"), *options, ATTACKED_SETTINGS=settings) as server:
        yield server


@pytest.fixture(autouse=True)
def holds(server: AttackedServer) -> Iterator[None]:
    """After each attack the server lives, no turn of its event loop was long, and it has logged no traceback."""
    server.forget_turns()
    yield
    assert server.process.poll() is None, server.log.read_text()
    assert server.is_live()
    turn = server.longest_turn
    assert turn.cpu_ms < LONGEST_TURN_MS, f"{turn.ran} held the event loop for {turn.cpu_ms} ms of CPU time"
    log = server.log.read_text()
    assert "Traceback" not in log, log
    assert "connection_failed" not in log, log
