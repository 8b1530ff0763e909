"""The link and the processes need asyncio underneath, so these tests run on it alone."""

from collections.abc import Iterator

import pytest

from actors.endpoint import LocalEndpoint


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def endpoint() -> Iterator[str]:
    with LocalEndpoint() as local:
        yield local.address
