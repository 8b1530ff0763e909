"""Traces as a collector gets them: spans, parents, times and attributes, from real requests over real workers."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
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
from gateway.http.listener import BindError
from gateway.settings import GatewaySettings, GatewaySettingsError
from gateway.tracing.otlp import MAX_SEQUENCES, OtlpTraces
from gateway.tracing.traced_request import Replay, TracedRequest, TracedSequence
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
        traces = OtlpTraces(found.url, "1.2.3", asyncio.get_running_loop().time)
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


@pytest.mark.parametrize("state", ["a=b" * 2000, "secret", "=,=", ",".join(f"k{n}=v" for n in range(99)), "a=b,a=c"])
async def test_a_malformed_state_of_a_trace_is_not_logged(state: str, caplog: pytest.LogCaptureFixture) -> None:
    async with traced() as (real, traces, found):
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": state}
        with caplog.at_level(logging.INFO):
            assert (await real.client.post("/v1/completions", json=COMPLETION, headers=headers)).status_code == 200
        await flush(traces)
    assert [record.name for record in caplog.records if record.name.startswith("opentelemetry")] == []
    (whole,) = found.named("text_completion tiny")
    assert whole.trace_id.hex() == TRACE


async def test_a_prompt_with_several_answers_counts_once() -> None:
    async with traced() as (real, traces, found):
        answer = await real.client.post("/v1/completions", json=COMPLETION | {"n": 3, "max_tokens": 2})
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    usage, shown = answer.json()["usage"], attributes(whole)
    assert shown["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] > 0
    assert shown["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 6


async def test_a_path_without_a_route_is_no_attribute() -> None:
    async with traced() as (real, traces, found):
        assert (await real.client.post("/no/such/path", json={})).status_code == 404
        await flush(traces)
    (span,) = found.spans
    assert span.name == "POST"
    assert "http.route" not in attributes(span)


NOW = 1000.0
"""The time of the clock when the scripted requests end."""


def scripted(
    found: Collector, *sequences: TracedSequence, received: float = NOW - 10
) -> dict[str, tuple[float, float]]:
    """Export one request. Begin and end of its spans by name, on the scripted clock."""
    traces = OtlpTraces(found.url, "1", lambda: NOW)
    request = TracedRequest("r", "m", "answered", 4, sequences)
    traces.begin([], "/v1/completions", received).ended(request, 200)
    traces.close(FLUSH_S)
    (whole,) = found.named("text_completion m")
    end = whole.end_time_unix_nano
    return {
        span.name: (
            round(NOW - (end - span.start_time_unix_nano) / 1e9, 3),
            round(NOW - (end - span.end_time_unix_nano) / 1e9, 3),
        )
        for span in found.spans
    }


def sequence(
    queue_s: float | None, prefill_s: float | None, *replays: Replay, first_at: float = NOW - 6
) -> TracedSequence:
    return TracedSequence(0, "b", "stop", NOW - 9, first_at, NOW - 1, queue_s, prefill_s, 4, 8, 0, replays)


def test_times_are_those_of_the_clock_and_end_now() -> None:
    """Whatever the wall clock was when the request came."""
    before = time.time_ns()
    with collector() as found:
        spans = scripted(found, sequence(0.5, 1.5))
    assert spans == {
        "text_completion m": (NOW - 10, NOW),
        "queue": (NOW - 8, NOW - 7.5),
        "prefill": (NOW - 7.5, NOW - 6),
        "decode": (NOW - 6, NOW - 1),
    }
    assert before <= found.named("text_completion m")[0].end_time_unix_nano <= time.time_ns()


def test_the_parts_do_not_begin_before_their_sequence() -> None:
    with collector() as found:
        spans = scripted(found, sequence(5.0, 2.0))
    assert (spans["queue"], spans["prefill"]) == ((NOW - 9, NOW - 8), (NOW - 8, NOW - 6))


def test_queue_and_prefill_of_the_last_worker_are_in_the_gap_that_it_ended() -> None:
    with collector() as found:
        spans = scripted(found, sequence(0.25, 0.5, Replay(NOW - 5, NOW - 3, "killed")))
    assert spans["replay"] == (NOW - 5, NOW - 3)
    assert (spans["queue"], spans["prefill"]) == ((NOW - 3.75, NOW - 3.5), (NOW - 3.5, NOW - 3))
    assert spans["decode"] == (NOW - 6, NOW - 1)


def test_a_replay_before_the_first_token_ends_with_it() -> None:
    with collector() as found:
        spans = scripted(found, sequence(0.25, 0.5, Replay(NOW - 9, NOW - 7, "killed")))
    assert spans["prefill"] == (NOW - 6.5, NOW - 6), "the prompt was reported first"


def test_what_no_worker_measured_is_no_span() -> None:
    with collector() as found:
        assert set(scripted(found, sequence(None, None))) == {"text_completion m", "decode"}
    with collector() as found:
        assert set(scripted(found, sequence(None, None, first_at=0.0))) == {"text_completion m"}


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


async def test_a_server_that_does_not_start_leaves_no_thread() -> None:
    with collector() as found, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = GatewaySettings(port=taken.getsockname()[1], otlp_traces_endpoint=found.url)
        with pytest.raises(BindError):
            await run_daemon(settings, [launch("a")])
    assert [each.name for each in threading.enumerate() if each.name.startswith("Otel")] == []


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://localhost:4317", "http://", "/v1/traces"])
def test_an_endpoint_is_a_url(url: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"otlp_traces_endpoint is .*; it must be a URL"):
        GatewaySettings(otlp_traces_endpoint=url)
