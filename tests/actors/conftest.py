"""The link and the processes need asyncio underneath, so these tests run on it alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.transport.endpoint import LocalEndpoint


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def endpoint() -> Iterator[str]:
    with LocalEndpoint() as local:
        yield local.address


@pytest.fixture
def own_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Socket folders are made where the test can see that they are gone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []
