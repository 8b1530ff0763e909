"""Traces as a collector gets them: spans, parents, times and attributes, from real requests over real workers."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install 'baton-serve[otel]'")

from gateway.daemon import TracesUnavailable, run_daemon
from gateway.settings import GatewaySettings, GatewaySettingsError
from gateway.tracing.otlp import MAX_SEQUENCES, OtlpTraces
from tests.attacks.server import attacked_server
from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION
from tests.gateway.tracing.collector import Collector, attributes, collector
from tests.pids import pid_of

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
FLUSH_S = 20.0


@asynccontextmanager
async def traced(
    *workers: str, settings: Mapping[str, Any] | None = None, **scripted: Any
) -> AsyncIterator[tuple[Real, OtlpTraces, Collector]]:
    with collector() as found:
        clock_to_ns = time.time_ns() - round(asyncio.get_running_loop().time() * 1e9)
        traces = OtlpTraces(found.url, "1.2.3", clock_to_ns)
        launches = [launch(name, **scripted) for name in workers or ("a",)]
        async with real_gateway(*launches, traces=traces, **settings or {}) as real:
            yield real, traces, found


async def flush(traces: OtlpTraces) -> None:
    await anyio.to_thread.run_sync(traces.close, FLUSH_S)


async def test_a_request_is_a_span_with_its_parts_inside() -> None:
    began = time.time_ns()
    async with traced() as (real, traces, found):
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        answer = await real.client.post("/v1/completions", json=COMPLETION | {"max_tokens": 3}, headers=headers)
        assert answer.status_code == 200
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    assert whole.kind == whole.SPAN_KIND_SERVER
    assert began <= whole.start_time_unix_nano < whole.end_time_unix_nano <= time.time_ns()
    usage = answer.json()["usage"]
    shown = attributes(whole)
    assert shown["baton.request.id"] == answer.headers["x-request-id"]
    assert {name: value for name, value in shown.items() if name != "baton.request.id"} == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "baton.outcome": "answered",
    }
    parts = {span.name: span for span in found.children(whole)}
    assert set(parts) == {"queue", "prefill", "decode"}
    assert parts["queue"].end_time_unix_nano == parts["prefill"].start_time_unix_nano
    assert parts["prefill"].end_time_unix_nano == parts["decode"].start_time_unix_nano
    assert whole.start_time_unix_nano <= parts["queue"].start_time_unix_nano
    assert parts["decode"].end_time_unix_nano <= whole.end_time_unix_nano
    assert attributes(parts["decode"]) == {"baton.sequence": 0, "baton.worker": "a", "baton.completion_tokens": 3}
    assert found.service["service.name"] == "baton"
    assert found.service["service.version"] == "1.2.3"


async def test_a_chat_has_the_name_of_its_operation_and_a_stream_is_traced_to_its_end() -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "stream": True}
    async with traced() as (real, traces, found):
        async with real.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert [line async for line in answer.aiter_lines()][-2:][0] == "data: [DONE]"
        await flush(traces)
    (whole,) = found.named("chat tiny")
    assert attributes(whole)["gen_ai.usage.output_tokens"] == 5
    assert not whole.parent_span_id


async def test_a_replay_is_a_span_over_the_gap() -> None:
    body = COMPLETION | {"max_tokens": 40, "stream": True}
    async with traced("a", "b", rate=100.0) as (real, traces, found):
        async with real.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = 0
            async for _ in answer.aiter_lines():
                lines += 1
                if lines == 9:
                    busy = next(each for each in real.workers if each.status.gauges.slots_active)
                    os.kill(pid_of(busy.status), signal.SIGKILL)
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    (replay,) = [span for span in found.children(whole) if span.name == "replay"]
    assert attributes(replay) == {"baton.sequence": 0, "baton.cause": "killed"}
    assert whole.start_time_unix_nano < replay.start_time_unix_nano < replay.end_time_unix_nano
    assert replay.end_time_unix_nano < whole.end_time_unix_nano
    assert attributes(whole)["gen_ai.usage.output_tokens"] == 40


async def test_a_refused_request_is_a_span_with_its_reason() -> None:
    async with traced() as (real, traces, found):
        assert (await real.client.post("/v1/completions", json={"model": "tiny"})).status_code == 400
        assert (await real.client.get("/v1/models")).status_code == 200
        await flush(traces)
    (span,) = found.spans
    assert span.name == "POST /v1/completions"
    assert attributes(span)["http.response.status_code"] == 400
    assert attributes(span)["error.type"]
    assert span.status.code == span.status.STATUS_CODE_UNSET, "the client's fault, by the conventions for servers"


async def test_no_more_sequences_than_the_bound_have_spans() -> None:
    async with traced(settings={"max_choices": MAX_SEQUENCES + 1}) as (real, traces, found):
        body = COMPLETION | {"max_tokens": 1, "n": MAX_SEQUENCES + 1}
        answer = await real.client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        await flush(traces)
    assert len(found.named("decode")) == MAX_SEQUENCES


@pytest.mark.parametrize("header", ["", "00-0-0-00", "x" * 1000, f"00-{TRACE}-{PARENT}-01-more", "\xff\xfe"])
async def test_a_malformed_context_begins_a_trace_of_its_own(header: str) -> None:
    async with traced() as (real, traces, found):
        headers = {"traceparent": header.encode("latin-1")}
        answer = await real.client.post("/v1/completions", json=COMPLETION, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 200
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    assert whole.trace_id.hex() != TRACE
    assert not whole.parent_span_id


async def test_what_a_caller_does_not_sample_is_not_exported() -> None:
    async with traced() as (real, traces, found):
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert (await real.client.post("/v1/completions", json=COMPLETION, headers=headers)).status_code == 200
        await flush(traces)
    assert found.spans == []


async def test_a_collector_that_does_not_answer_holds_nothing() -> None:
    async with traced() as (real, traces, found):
        found.answers.clear()
        for _ in range(20):
            assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200
        with anyio.fail_after(10):
            await anyio.to_thread.run_sync(traces.close, 0.2)


def test_the_server_exports_what_it_served_before_it_ends(tmp_path: Path) -> None:
    with collector() as found, attacked_server(tmp_path, "--otlp-traces-endpoint", found.url) as server:
        headers = {"Content-Type": "application/json"}
        body = json.dumps({"model": "scripted", "prompt": "a"})
        status, answer = server.request("POST", "/v1/completions", body, headers)
        assert status == 200, answer
    assert len(found.named("text_completion scripted")) == 1


async def test_without_the_packages_the_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gateway.tracing.otlp", None)
    settings = GatewaySettings(port=0, otlp_traces_endpoint="http://localhost:4318/v1/traces")
    with pytest.raises(TracesUnavailable, match=r"pip install 'baton-serve\[otel\]'"):
        await run_daemon(settings, [launch("a")])


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://localhost:4317", "http://", "/v1/traces"])
def test_an_endpoint_is_a_url(url: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"otlp_traces_endpoint is .*; it must be a URL"):
        GatewaySettings(otlp_traces_endpoint=url)
