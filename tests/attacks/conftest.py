"""Fixtures of the attacks."""

from collections.abc import Iterator

import pytest

from tests.attacks.server import AttackedServer, attacked_server

LONGEST_TURN_MS = 50.0
"""CPU time that one turn of the gateway's event loop may take, under any attack."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedServer]:
    """A server with the default settings. No attack may make a turn of its event loop long, or end it."""
    with attacked_server(tmp_path_factory.mktemp("server")) as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()
        assert server.is_live()
        turn = server.longest_turn
        assert turn.cpu_ms < LONGEST_TURN_MS, f"{turn.ran} held the event loop for {turn.cpu_ms} ms of CPU time"


@pytest.fixture
def anyio_backend() -> str:
    """The gateway runs on asyncio: its links and its server do."""
    return "asyncio"
