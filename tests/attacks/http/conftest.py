"""Fixtures of the attacks on connections."""

from collections.abc import Iterator

import pytest

from tests.attacks.server import AttackedServer


@pytest.fixture(autouse=True)
def holds(server: AttackedServer) -> Iterator[None]:
    """After each attack the server has logged no traceback, beside what holds for all attacks."""
    yield
    log = server.log.read_text()
    assert "Traceback" not in log, log
    assert "connection_failed" not in log, log
