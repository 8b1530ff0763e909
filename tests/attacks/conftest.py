"""The gateway runs on asyncio: its links and its server do."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
