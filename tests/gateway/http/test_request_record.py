"""Every response is counted by route, status and reason; a refusal is one line, without a word of the client."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from actors.transport.log_limit import BURST, LogLimit
from gateway.errors import STATUS, RefusalCode
from gateway.http.request_record import RequestRecords, record_of
from gateway.tracing.traced_request import RequestTrace, TracedRequest
from protocol.errors import ErrorCode
from protocol.events import Usage
from protocol.request import FinishReason
from tests.gateway.harness.serving import CHAT, COMPLETION, Served, open_raw, serving
from tests.gateway.http.http2 import client

pytestmark = pytest.mark.anyio

KEY = {"authorization": "Bearer secret"}
CASES: list[tuple[str, str, dict[str, Any], tuple[str, int, str]]] = [
    ("GET", "/v1/models", {"headers": {}}, ("/v1/models", 401, "invalid_api_key")),
    ("GET", "/v1/models", {}, ("/v1/models", 200, "")),
    ("GET", "/v1/models/other", {}, ("/v1/models/{id}", 404, "model_not_found")),
    ("GET", "/v1/models/a/b/c", {}, ("/v1/models/{id}", 404, "model_not_found")),
    ("GET", "/some/path", {}, ("other", 404, "not_found")),
    ("GET", "/some/path", {"headers": {}}, ("other", 401, "invalid_api_key")),
    ("DELETE", "/v1/models", {}, ("/v1/models", 405, "method_not_allowed")),
    ("PUT", "/v1/completions", {}, ("/v1/completions", 405, "method_not_allowed")),
    ("GET", "/v1/streams/cmpl-12", {}, ("/v1/streams/{id}", 404, "stream_not_found")),
    ("DELETE", "/v1/streams/cmpl-12", {}, ("/v1/streams/{id}", 404, "stream_not_found")),
    ("GET", "/v1/models", {"headers": KEY | {"x": "y" * 40_000}}, ("/v1/models", 431, "headers_too_large")),
    ("POST", "/v1/completions", {"content": b"x"}, ("/v1/completions", 415, "unsupported_media_type")),
    ("POST", "/v1/completions", {"json": {"model": "tiny"}}, ("/v1/completions", 400, "invalid_request")),
    ("POST", "/v1/completions", {"json": COMPLETION | {"x": 1}}, ("/v1/completions", 400, "unknown_parameter")),
    ("POST", "/v1/chat/completions", {"json": CHAT | {"store": True}}, ("/v1/chat/completions", 400, "unsupported")),
    ("POST", "/v1/completions", {"json": {"p": "x" * 3000}}, ("/v1/completions", 413, "body_too_large")),
    ("GET", "/health/live", {"headers": {}}, ("/health/live", 200, "")),
    ("GET", "/", {}, ("/", 200, "")),
]


def counted(served: Served) -> Mapping[tuple[str, int, str], float]:
    families = text_string_to_metric_families(served.router.metrics.render().decode())
    (family,) = [each for each in families if each.name == "baton_http_responses"]
    return {
        (each.labels["route"], int(each.labels["status"]), each.labels["reason"]): each.value
        for each in family.samples
        if each.name.endswith("_total")
    }


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_every_response_is_counted_once(http2: bool) -> None:
    async with serving(api_key="secret", max_body_bytes=2000) as served, client(served.port) as over_http2:
        web = over_http2 if http2 else served.client
        wanted: dict[tuple[str, int, str], float] = {}
        for method, path, options, key in CASES:
            answer = await web.request(method, path, **({"headers": KEY} | options))
            assert answer.status_code == key[1], (path, answer.text)
            wanted[key] = wanted.get(key, 0) + 1
            assert counted(served) == wanted
    assert {reason for _, _, reason in wanted} <= {"", *map(str, STATUS)}


async def test_ended_requests_are_counted_by_their_status_and_failures_by_their_code() -> None:
    async with serving() as served, anyio.create_task_group() as group:
        for body in (COMPLETION, COMPLETION | {"stream": True}, COMPLETION | {"stream": True}):
            group.start_soon(partial(served.client.post, "/v1/completions", json=body))
        first, second, third = await served.worker.wait_submits(3)
        served.worker.finish(first.stream, "a")
        served.worker.finish(second.stream, "a")
        served.worker.fail(third.stream, ErrorCode.CONTEXT)
    assert counted(served) == {
        ("/v1/completions", 200, ""): 2,
        ("/v1/completions", 400, "context_length_exceeded"): 1,
    }


async def test_connections_over_the_bound_are_counted() -> None:
    async with serving(max_connections=1, keep_alive_s=3600) as served:
        async with await open_raw(served.port, "/v1/completions", COMPLETION):
            await served.worker.wait_submits(1)
            assert (await served.client.get("/v1/models")).status_code == 503
            assert (await served.client.get("/health/live")).status_code == 200
        assert counted(served) == {("/v1/models", 503, "unavailable"): 1, ("/health/live", 200, ""): 1}


async def test_a_refusal_is_one_line_without_a_word_of_the_client() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(api_key="secret") as served:
            headers = {"authorization": "Bearer hunter2", "x-request-id": "mine"}
            await served.client.get("/etc/passwd?secret-text", headers=headers)
            await served.client.post("/v1/completions", json=COMPLETION | {"hunter2": 1}, headers=KEY)
    lines = [log for log in logs if log["event"] == "request_refused"]
    assert lines[0] == {
        "event": "request_refused",
        "log_level": "info",
        "request": "mine",
        "route": "other",
        "status": 401,
        "code": "invalid_api_key",
        "key": "",
    }
    assert (lines[1]["code"], lines[1]["status"], lines[1]["route"]) == ("unknown_parameter", 400, "/v1/completions")
    assert len(lines) == 2
    assert not any(word in str(logs) for word in ("hunter2", "passwd", "secret-text"))


async def test_a_flood_of_refusals_is_no_flood_of_lines() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as served:
            for _ in range(5 * BURST):
                await served.client.get("/nothing")
            await served.client.get("/v1/models/other")
        assert counted(served)["other", 404, "not_found"] == 5 * BURST
    codes = [log["code"] for log in logs if log["event"] == "request_refused"]
    assert BURST <= codes.count("not_found") < 5 * BURST
    assert codes.count("model_not_found") == 1


async def test_the_end_of_a_request_has_its_tokens_and_times() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as served, anyio.create_task_group() as group:
            body = COMPLETION | {"prompt": ["private", "words"], "stream": True}
            group.start_soon(partial(served.client.post, "/v1/completions", json=body))
            first, second = await served.worker.wait_submits(2)
            reasons: tuple[FinishReason, FinishReason] = ("stop", "length")
            for submit, reason in zip((first, second), reasons, strict=True):
                served.worker.token(submit.stream, "x", 1)
                served.worker.token(submit.stream, "y", 2)
                usage = Usage(7, 2, queue_ms=250, cached_tokens=3)
                served.worker.finish(submit.stream, reason=reason, usage=usage)
    (line,) = [log for log in logs if log["event"] == "request_ended"]
    assert (line["status"], line["outcome"], line["finish"], line["key"]) == (200, "answered", "length,stop", "")
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (14, 4, 6)
    assert line["queue_s"] == 0.25
    assert 0 < line["first_token_s"] <= line["total_s"]
    assert not any(word in str(logs) for word in ("private", "words"))


async def test_a_client_that_leaves_has_no_status() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as served:
            async with await open_raw(served.port, "/v1/completions", COMPLETION):
                await served.worker.wait_submits(1)
            await served.worker.wait_cancels(1)
    (line,) = [log for log in logs if log["event"] == "request_ended"]
    assert (line["status"], line["outcome"], line["first_token_s"], line["finish"]) == (None, "client_gone", None, "")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (0, 0)


async def test_lines_have_the_name_of_the_key_that_was_found_after_the_record_was_made() -> None:
    counted: list[tuple[str, int, str]] = []
    records = RequestRecords((), lambda *labels: counted.append(labels), LogLimit(lambda: 0.0))
    scope = {"path": "/x", "baton.request_id": "r1"}
    record = records.begin(scope)
    record.key_name = "team-a"
    record.reason = RefusalCode.NOT_FOUND
    with structlog.testing.capture_logs() as logs:
        record.started(404)
        record.started(500)
    assert [(log["key"], log["request"]) for log in logs] == [("team-a", "r1")]
    assert counted == [("other", 404, "not_found")]
    assert record_of(scope) is record


class Refused:
    """Keeps the refusals that would be traced."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def begin(self, headers: Sequence[tuple[bytes, bytes]], route: str, received: float) -> RequestTrace:
        return self

    def refused(self, status: int, reason: str) -> None:
        self.found.append((status, reason))

    def ended(self, request: TracedRequest, status: int | None) -> None:
        raise NotImplementedError


async def test_a_flood_of_refusals_is_no_flood_of_traces() -> None:
    traces = Refused()
    records = RequestRecords((), lambda *labels: None, LogLimit(lambda: 0.0), traces)
    for _ in range(2 * BURST):
        record = records.begin({"path": "/x", "method": "POST", "headers": ()})
        record.reason = RefusalCode.INVALID_API_KEY
        record.started(401)
    assert traces.found == [(401, "invalid_api_key")] * BURST


async def test_what_is_no_valid_http_has_no_trace() -> None:
    """It has neither a method nor headers."""
    traces = Refused()
    records = RequestRecords((), lambda *labels: None, LogLimit(lambda: 0.0), traces)
    record = records.begin({"path": "", "baton.request_id": "r1"})
    record.reason = ErrorCode.INVALID
    record.started(400)
    assert traces.found == []
