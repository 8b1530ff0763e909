"""Bodies of the admin endpoints that are no JSON."""

import httpx
import pytest

from gateway.app import create_app
from gateway.fleet.hand_over import HandOver
from gateway.http.listener import Listener
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.actors.inbox import Inbox

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "raw",
    [b"{", b"\xff\xfe", b'{"\xff": 1}'],
    ids=["unfinished", "binary", "bad utf-8"],
)
async def test_a_body_that_is_not_json_is_refused(raw: bytes) -> None:
    settings = GatewaySettings()
    with Listener() as listener:
        app = create_app(Router(settings), settings, hand_over=HandOver(listener, Inbox().ref))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            headers = {"content-type": "application/json"}
            answer = await client.post("/admin/gateway/leave", content=raw, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
