"""Join tokens over HTTP: who may ask for one, and what it is; and remote workers that are removed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.transport.join_tokens import JoinTokens, parse_token
from actors.transport.keys import make_gateway_key
from actors.transport.rejections import Rejections
from gateway.app import create_app
from gateway.fleet.remote_join import RemoteJoin
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.gateway.fleet.remote import doorway
from tests.gateway.harness.real import launch
from tests.gateway.harness.traffic import ask as operate

pytestmark = pytest.mark.anyio

ADMIN = {"authorization": "Bearer admin"}


@asynccontextmanager
async def client_of(folder: Path, *, listens: bool = True, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    joining = {"listen_workers": "tcp://127.0.0.1:0", "keys_dir": str(folder)}
    chosen = GatewaySettings(**(settings | joining if listens else settings))
    joins = RemoteJoin(chosen, Rejections()) if listens else None
    app = create_app(Router(chosen), chosen, joins=joins)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_an_administrator_gets_a_token_of_the_name(tmp_path: Path) -> None:
    server = make_gateway_key(tmp_path)
    async with client_of(tmp_path, admin_key="admin") as client:
        answer = await client.post("/admin/workers/gpu1/token", json={"valid_s": 5}, headers=ADMIN)
        made = answer.json()
        assert answer.status_code == 200
        assert made | {"token": ""} == {"worker": "gpu1", "token": "", "valid_s": 5, "server_key": server.public_text}
        assert JoinTokens(tmp_path).read().names == {parse_token(made["token"]).public: "gpu1"}
        again = await client.post("/admin/workers/gpu1/token", json={}, headers=ADMIN)
        assert (again.status_code, again.json()["valid_s"]) == (200, 600)


@pytest.mark.parametrize(
    ("settings", "name", "body", "code"),
    [
        ({}, "gpu1", {}, "admin_key_needed"),
        ({"admin_key": "other"}, "gpu1", {}, "invalid_api_key"),
        ({"admin_key": "admin", "listens": False}, "gpu1", {}, "no_remote_workers"),
        ({"admin_key": "admin"}, ".gpu1", {}, "invalid_request"),
        ({"admin_key": "admin"}, "gpu1", {"valid_s": 0.5}, "invalid_request"),
        ({"admin_key": "admin"}, "gpu1", {"valid_s": 604801}, "invalid_request"),
        ({"admin_key": "admin"}, "gpu1", {"x": 1}, "unknown_parameter"),
    ],
    ids=["no key set", "wrong key", "nothing joins", "name", "short", "long", "unknown"],
)
async def test_nobody_else_and_nothing_else_makes_one(
    tmp_path: Path, settings: dict[str, Any], name: str, body: dict[str, Any], code: str
) -> None:
    make_gateway_key(tmp_path)
    async with client_of(tmp_path, **settings) as client:
        answer = await client.post(f"/admin/workers/{name}/token", json=body, headers=ADMIN)
        assert answer.json()["error"]["code"] == code
        assert JoinTokens(tmp_path).read().names == {}


async def test_a_removed_remote_worker_is_forgotten_and_may_not_come_back(tmp_path: Path) -> None:
    async with doorway(tmp_path, launch("near")) as door:
        with door.joining("far"):
            await door.ready("far")
            answer = await operate(door.real, "/admin/workers/near/remove")
            assert answer["outcome"] == "failed"
            assert "gateway's own machine" in answer["lines"][-1]
            answer = await operate(door.real, "/admin/workers/far/remove")
            assert (answer["outcome"], answer["lines"]) == ("done", ["far is drained and removed: it may join no more"])
            assert [each.name for each in door.real.router.pool] == ["near"]
            await door.real.until(lambda: door.rejected().get("key", 0) > 0)
            assert (await door.real.client.get("/health/ready")).json()["models"] == {"tiny": True}
