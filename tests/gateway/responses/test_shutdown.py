"""Responses in the background at the end of a whole gateway, over a real worker."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.responses.store.sqlite import SqliteStore
from tests.gateway.harness.daemon import daemon
from tests.gateway.harness.real import launch

pytestmark = pytest.mark.anyio


async def ended(path: Path, response: str) -> Any:
    """The response as the file has it after the gateway."""
    store = SqliteStore(str(path), 10, 1 << 20)
    found = await store.get("", response)
    store.close()
    assert found is not None
    return msgspec.json.decode(found.response)


@pytest.mark.parametrize(
    ("grace_s", "tokens", "status"), [(0.0, 100, "failed"), (60.0, 3, "incomplete")], ids=["no time", "time"]
)
async def test_it_has_its_last_state_in_the_file(tmp_path: Path, grace_s: float, tokens: int, status: str) -> None:
    path = tmp_path / "store.db"
    body = {"model": "tiny", "input": "hi", "background": True, "max_output_tokens": tokens}
    async with daemon(launch("a", rate=5), store=f"sqlite:{path}", shutdown_grace_s=grace_s) as (_, client):
        response = (await client.post("/v1/responses", json=body)).json()["id"]
        os.kill(os.getpid(), signal.SIGTERM)
    found = await ended(path, response)
    assert found["status"] == status
    if status == "failed":
        assert found["error"] == {"code": "server_error", "message": "the gateway is shutting down"}
