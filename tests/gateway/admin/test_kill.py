"""Killing a worker by a request: who may, what is killed, and what follows."""

import functools
from typing import Any

import pytest

from actors.supervision.worker import WorkerState
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION, serving

pytestmark = pytest.mark.anyio

ADMIN = {"authorization": "Bearer admin"}
BODY = COMPLETION | {"max_tokens": 200, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


async def ask(real: Real) -> Any:
    return (await real.client.post("/v1/completions", json=BODY)).json()["choices"][0]["token_ids"]


async def test_a_killed_worker_starts_again_and_its_streams_go_on() -> None:
    async with real_gateway(launch("w0", rate=200), launch("w1", rate=200), admin_key="admin") as real:
        expected = await ask(real)
        first = real.status()

        async def kill() -> Any:
            await real.until(lambda: any(len(each.tokens) > 20 for each in real.router.sequences()))
            return await real.client.post("/admin/workers/w0/kill", json={}, headers=ADMIN)

        *answers, killed = await gather(*[functools.partial(ask, real)] * 4, kill)
        assert (killed.status_code, killed.json()) == (202, {"worker": "w0", "incarnation": 1, "pid": first.pid})
        assert answers == [expected] * 4
        await real.until(lambda: real.status().incarnation == 2 and real.status().state is WorkerState.READY)
        assert real.status().restarts == 1
        assert real.router.metrics.replays() > 0


async def _ready(real: Real, incarnation: int) -> None:
    await real.until(lambda: real.status().incarnation == incarnation and real.status().state is WorkerState.READY)


async def test_kills_never_give_a_worker_up() -> None:
    async with real_gateway(launch("w0"), admin_key="admin") as real:
        for incarnation in range(1, 8):
            await _ready(real, incarnation)
            assert (await real.client.post("/admin/workers/w0/kill", json={}, headers=ADMIN)).status_code == 202
        await _ready(real, 8)


@pytest.mark.parametrize(
    ("settings", "headers", "code"),
    [
        ({}, {}, "admin_key_needed"),
        ({"api_key": "client"}, {"authorization": "Bearer client"}, "admin_key_needed"),
        ({"admin_key": "admin"}, {}, "invalid_api_key"),
        ({"admin_key": "admin"}, {"authorization": "Bearer wrong"}, "invalid_api_key"),
        ({"api_key": "client", "admin_key": "admin"}, {"authorization": "Bearer client"}, "invalid_api_key"),
        (
            {"admin_key": "admin"},
            {"authorization": "Basic OmFkbWlu", "sec-fetch-site": "cross-site"},
            "origin_not_allowed",
        ),
        (
            {"admin_key": "admin"},
            {"authorization": "Basic OmFkbWlu", "origin": "https://a.example"},
            "origin_not_allowed",
        ),
        ({"admin_key": "admin"}, ADMIN | {"content-type": "text/plain"}, "unsupported_media_type"),
    ],
    ids=["no key set", "API key", "no key", "wrong", "client", "cross-site", "other origin", "form"],
)
async def test_nobody_else_kills(settings: dict[str, Any], headers: dict[str, str], code: str) -> None:
    async with serving(**settings) as served:
        sent = {"content-type": "application/json"} | headers
        answer = await served.client.post("/admin/workers/w0/kill", content=b"{}", headers=sent)
        assert answer.json()["error"]["code"] == code
        assert served.worker.kills == 0
        assert (await served.client.get("/admin/workers/w0/kill", headers=ADMIN)).status_code in (401, 403, 405)
        assert served.worker.kills == 0


async def test_only_a_worker_with_a_process_here_is_killed() -> None:
    async with serving(admin_key="admin") as served:
        answer = await served.client.post("/admin/workers/w9/kill", json={}, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "worker_not_found")
        answer = await served.client.post("/admin/workers/w0/kill", json={"x": 1}, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x")
        served.worker.die()
        answer = await served.client.post("/admin/workers/w0/kill", json={}, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_process")
        assert "backoff" in answer.json()["error"]["message"]
        assert served.worker.kills == 0
