"""Every route and what guards it, over a real server."""

import base64
from typing import Any

import anyio
import pytest

from actors.process.exit_cause import Origin
from actors.supervision.worker import LastFailure, WorkerState
from baton_serve import __version__
from gateway.routing.circuit_breaker import TRIP_AFTER
from protocol.events import Gauges
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import CHAT, COMPLETION, serving

pytestmark = pytest.mark.anyio

ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/props"),
    ("GET", "/metrics"),
    ("GET", "/admin/workers"),
    ("GET", "/admin/live"),
    ("GET", "/nowhere"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
]


async def test_models_are_listed_and_found() -> None:
    def make(name: str) -> FakeWorker:
        return FakeWorker(name, model="org/model")

    async with serving(make=make) as served:
        listed = (await served.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        (model,) = listed["data"]
        assert (model["id"], model["object"], model["owned_by"], model["max_model_len"]) == (
            "org/model",
            "model",
            "baton",
            128,
        )
        assert (await served.client.get("/v1/models/org/model")).json() == model
        missing = await served.client.get("/v1/models/other")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"


async def test_the_properties_of_a_model_are_those_that_clients_of_llama_cpp_read() -> None:
    async with serving() as served:
        first, named, missing = [await served.client.get(f"/props{query}") for query in ("", "?model=tiny", "?model=x")]
    assert first.json() == named.json()
    assert first.json() == {
        "default_generation_settings": {"n_ctx": 128},
        "total_slots": 4,
        "model_alias": "tiny",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"baton {__version__}",
    }
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_an_unknown_model_is_a_404_that_names_those_there_are(path: str) -> None:
    body = (COMPLETION if path == "/v1/completions" else CHAT) | {"model": "huge"}
    async with serving() as served:
        response = await served.client.post(path, json=body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["param"] == "model"
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/health/live/", 404),
    ],
)
async def test_what_is_not_there_is_an_error_object(method: str, path: str, status: int) -> None:
    async with serving() as served:
        response = await served.client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "_" not in error["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ("/health/", "did you mean /health?"),
        ("/v1/v1/messages", "did you mean /v1/messages?"),
        ("/openai/v1/rerank", "did you mean /v1/rerank?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/completion", "did you mean /v1/completions?"),
        ("/slots", "/slots: not found; /admin/workers has the slots of each worker"),
        ("/api/pull", "/api/pull: not found; models are managed by commands: `baton pull`, `baton list`, `baton rm`"),
        (f"/{'x' * 51}/v1/messages", "did you mean /v1/messages?"),
        (f"/{'x' * 52}/v1/messages", "not found"),
        ("/admin/keys/", "not found"),
        (
            "/v1/threads",
            "; this server has /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/classify, /v1/score, "
            "/v1/rerank, /v1/responses, /v1/messages, /v1/messages/count_tokens, /v1/models, /v1/health",
        ),
        (
            "/v1/load_lora_adapter",
            "; to load adapters at run time, set `lora_dirs` or `allow_lora_repos`",
        ),
        ("/admin", "not found"),
    ],
)
async def test_the_error_of_an_unknown_path_lists_the_routes(path: str, meant: str) -> None:
    async with serving() as served:
        response = await served.client.post(path, json={})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error if path.startswith("/api/") else error["message"]).endswith(meant)


async def test_health_follows_progress_and_not_existence() -> None:
    async with serving(progress_timeout_s=5) as served:
        worker, client = served.worker, served.client
        assert (await client.get("/health/live")).status_code == 200
        ready = await client.get("/health/ready")
        details = {"models": {"tiny": True}, "states": {"tiny": "loaded"}, "given_up": []}
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"} | details)
        worker.change(last_progress=anyio.current_time() - 6)
        stuck = await client.get("/health/ready")
        assert (stuck.status_code, stuck.json()["status"]) == (503, "not ready")
        assert stuck.headers["retry-after"] == "1"
        brief = await client.get("/health")
        assert (brief.status_code, brief.json(), brief.headers["retry-after"]) == (503, {"status": "not ready"}, "1")
        worker.change(last_progress=anyio.current_time())
        assert (await client.get("/health/ready")).status_code == 200
        for state in set(WorkerState) - {WorkerState.READY}:
            worker.change(state=state)
            broken = await client.get("/health/ready")
            assert broken.status_code == 503, state
            assert broken.json()["given_up"] == (["w0"] if state is WorkerState.GIVEN_UP else [])
        worker.change(state=WorkerState.READY)
        for _ in range(TRIP_AFTER):
            served.router.pool["w0"].breaker.failed(anyio.current_time())
        failing = await client.get("/health/ready")
        assert (failing.status_code, failing.json()["models"]) == (503, {"tiny": False}), (
            "its requests would be refused"
        )
        served.router.pool["w0"].breaker.succeeded()
        assert (await client.get("/health/ready")).status_code == 200
        served.router.admission.drain_nowait()
        drained = await client.get("/health/ready")
        assert (drained.status_code, drained.json()["status"]) == (503, "draining")
        assert (await client.get("/health")).json() == {"status": "draining"}
        assert (await client.get("/health/live")).status_code == 200


async def test_workers_are_described() -> None:
    async with serving("a", "b") as served:
        gauges = Gauges(slots_active=2, queue_depth=3, steps=17, slowest_step_ms=250)
        served.worker.change(gauges=gauges, last_progress=anyio.current_time())
        killed = LastFailure(1, "it was killed", Origin.OUTSIDE, anyio.current_time() - 5.0)
        served.workers[1].change(state=WorkerState.STARTING, hello=None, pid=None, last_failure=killed)
        first, second = (await served.client.get("/admin/workers")).json()["workers"]
    assert 0 <= first.pop("last_progress_s") < 60
    assert first == {
        "address": None,
        "name": "a",
        "model": "tiny",
        "backend": "scripted",
        "device": "cpu-0",
        "pid": 4242,
        "incarnation": 1,
        "state": "ready",
        "role": "active",
        "phases": "both",
        "circuit": "closed",
        "restarts": 0,
        "reason": "",
        "last_failure": None,
        "slots_total": 4,
        "slots_active": 2,
        "queue_depth": 3,
        "steps": 17,
        "slowest_step_s": 0.25,
        "hang_after_s": 0.0,
    }
    assert (second["state"], second["pid"], second["backend"], second["slots_total"]) == ("starting", None, None, 0)
    assert 5 <= second["last_failure"].pop("ago_s") < 60
    assert second["last_failure"] == {"incarnation": 1, "origin": "outside", "reason": "it was killed"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "secret"},
        {"authorization": "Digest secret"},
        {"authorization": "Basic c2VjcmV0"},
        {"authorization": "Basic !"},
        {"authorization": "Bearer sécret".encode()},
        {"host": "x/health/live"},
    ],
    ids=["none", "wrong", "no key", "no scheme", "other scheme", "no password", "not base64", "not ascii", "host"],
)
async def test_everything_but_health_wants_the_key(headers: dict[str, Any]) -> None:
    async with serving(api_key="secret") as served:
        for method, path in ROUTES:
            response = await served.client.request(method, path, headers=headers)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert "www-authenticate" in response.headers
        assert served.worker.sent == []


async def test_the_key_opens_and_health_needs_none() -> None:
    basic = base64.b64encode(b"anyone:secret").decode()
    async with serving(api_key="secret") as served:
        for headers in ({"authorization": "Bearer secret"}, {"authorization": f"Basic {basic}"}):
            assert (await served.client.get("/v1/models", headers=headers)).status_code == 200
        for path in ("/health", "/health/live", "/health/ready", "/ping", "/v1/health"):
            assert (await served.client.get(path)).status_code == 200
        for path in ("/health/", "/version", "/health/../v1/models", "/health/live/", "//v1/models"):
            assert (await served.client.get(path)).status_code == 401


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1.2:3_4", True), ("a" * 128, True), ("a" * 129, False), ("", False), ("a b", False), ('a"b', False)],
)
async def test_the_request_id_is_echoed_or_made(given: str, kept: bool) -> None:
    async with serving() as served:
        for path in ("/v1/models", "/nowhere"):
            answered = (await served.client.get(path, headers={"x-request-id": given})).headers["x-request-id"]
            assert (answered == given) is kept
            assert answered


@pytest.mark.parametrize("over", [0, 1], ids=["at the bound", "over"])
async def test_the_body_is_bounded(over: int) -> None:
    bound = 4096
    async with serving(max_body_bytes=bound) as served:
        body = b'{"model":"tiny","prompt":7}'
        body += b" " * (bound + over - len(body))
        response = await served.client.post(
            "/v1/completions", content=body, headers={"content-type": "application/json"}
        )
    assert response.status_code == (413 if over else 400)
    assert response.json()["error"]["param"] == (None if over else "prompt")


async def test_a_body_far_over_the_bound_is_not_read_to_its_end() -> None:
    async with serving(max_body_bytes=1000) as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        async with stream:
            await stream.send(head + b"Content-Length: 100000000\r\n\r\n" + b" " * 100_000)
            answer = await stream.receive()
            assert answer.startswith(b"HTTP/1.1 413 ")
        assert (await served.client.get("/health/live")).status_code == 200


@pytest.mark.parametrize("size", [2000, 100_000], ids=["over our bound", "over the parser's"])
async def test_headers_are_bounded(size: int) -> None:
    async with serving(max_header_bytes=1024) as served:
        assert (await served.client.get("/v1/models")).status_code == 200
        response = await served.client.get("/v1/models", headers={"x-long": "x" * size})
        assert response.status_code == 431


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_form_of_another_site_cannot_post(kind: str) -> None:
    async with serving() as served:
        response = await served.client.post("/v1/completions", content=b"{}", headers={"content-type": kind})
        assert response.status_code == 415


async def test_a_body_has_a_deadline() -> None:
    async with serving(body_timeout_s=0.05) as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        async with stream:
            await stream.send(head + b"Content-Length: 9\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 408 ")


async def test_a_full_gateway_sends_retry_after() -> None:
    async with serving(max_streams_per_worker=1, max_waiting_streams=0, max_choices=1, retry_after_s=7) as served:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: served.client.post("/v1/completions", json=COMPLETION))
            (submit,) = await served.worker.wait_submits(1)
            response = await served.client.post("/v1/completions", json=COMPLETION)
            served.worker.finish(submit.stream)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "7"
        assert response.json()["error"]["type"] == "rate_limit_error"


async def ended(stream: anyio.abc.SocketStream) -> None:
    """Until the server closes the connection."""
    try:
        while True:
            await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return


@pytest.mark.parametrize("path", ["/v1/models", "/nowhere"])
async def test_an_unread_body_delays_nothing(path: str) -> None:
    """Hypercorn waits for room in its queue of unread body even to end an exchange: the answer must come before."""
    async with serving() as served:
        stream = await anyio.connect_tcp("127.0.0.1", served.port)
        async with stream:
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n".encode()
            await stream.send(head + b" " * 2_000_000)
            with anyio.fail_after(20):
                await ended(stream)
        assert (await served.client.get("/health/live")).status_code == 200
