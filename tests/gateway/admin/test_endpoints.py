"""Bodies of the admin endpoints that are no JSON."""

import httpx
import pytest

from gateway.app import create_app
from gateway.routing.router import Router
from gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "raw",
    [b"{", b"\xff\xfe", b'{"\xff": 1}'],
    ids=["unfinished", "binary", "bad utf-8"],
)
async def test_a_body_that_is_not_json_is_refused(raw: bytes) -> None:
    settings = GatewaySettings()
    app = create_app(Router(settings), settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/admin/keys/reload", content=raw, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
