"""The link and the processes need asyncio underneath, so these tests run on it alone."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
