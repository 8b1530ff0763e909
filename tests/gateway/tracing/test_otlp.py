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

from gateway.daemon import run_daemon
from gateway.http.listener import BindError
from gateway.settings import GatewaySettings, GatewaySettingsError
from gateway.tracing.opening import TracesUnavailable
from gateway.tracing.otlp import MAX_SEQUENCES, OtlpTraces
from gateway.tracing.traced_request import Attempt, Replay, TracedRequest, TracedSequence
from protocol.events import StartedStream
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
        incarnation = real.status().incarnation
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
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "baton.outcome": "answered",
    }
    (worker,) = found.children(whole)
    assert worker.name == "worker"
    parts = found.children(worker)
    assert [span.name for span in parts] == ["tokenize", "queue", "prefill", "decode"]
    assert [span.end_time_unix_nano for span in parts[:-1]] == [span.start_time_unix_nano for span in parts[1:]]
    assert whole.start_time_unix_nano <= worker.start_time_unix_nano <= parts[0].start_time_unix_nano
    assert parts[-1].end_time_unix_nano <= worker.end_time_unix_nano <= whole.end_time_unix_nano
    about = {"baton.sequence": 0, "baton.worker": "a", "baton.incarnation": incarnation}
    assert [attributes(span) for span in (worker, parts[0], parts[1])] == [about] * 3
    prompt = {"baton.prompt_tokens": usage["prompt_tokens"], "baton.cached_tokens": 0}
    assert attributes(parts[2]) == about | prompt
    assert attributes(parts[3]) == about | {"baton.completion_tokens": 3}
    assert not worker.links
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
    assert attributes(whole)["gen_ai.request.stream"] is True
    assert not whole.parent_span_id


async def test_a_request_whose_worker_was_killed_shows_both_and_the_gap() -> None:
    body = COMPLETION | {"max_tokens": 40, "stream": True}
    async with traced("a", "b", rate=100.0) as (real, traces, found):
        async with real.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = 0
            async for _ in answer.aiter_lines():
                lines += 1
                if lines == 9:
                    busy = next(each for each in real.workers if each.status.gauges.slots_active)
                    incarnation = busy.status.incarnation
                    os.kill(pid_of(busy.status), signal.SIGKILL)
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    lost, other = [span for span in found.children(whole) if span.name == "worker"]
    (replay,) = [span for span in found.children(whole) if span.name == "replay"]
    assert attributes(lost) == {
        **{"baton.sequence": 0, "baton.worker": busy.name, "baton.incarnation": incarnation},
        "error.type": "killed",
    }
    assert lost.status.code == lost.status.STATUS_CODE_ERROR
    assert attributes(other)["baton.worker"] == {"a": "b", "b": "a"}[busy.name]
    links = [[link.span_id for link in span.links] for span in (lost, other, replay)]
    assert links == [[], [lost.span_id], [lost.span_id]]
    inside = [{span.name: span for span in found.children(worker)} for worker in (lost, other)]
    assert [[*each] for each in inside] == [["tokenize", "queue", "prefill", "decode"]] * 2
    parts = {name: [each[name] for each in inside] for name in inside[0]}
    first, second = (attributes(span)["baton.completion_tokens"] for span in parts["decode"])
    assert (first > 0, first + second) == (True, 40)
    prompts = [attributes(span)["baton.prompt_tokens"] for span in parts["prefill"]]
    assert prompts[1] == prompts[0] + first, "the delivered tokens are prefilled there"
    assert attributes(replay) == {"baton.sequence": 0, "baton.cause": "killed"}
    assert parts["decode"][0].end_time_unix_nano == replay.start_time_unix_nano < replay.end_time_unix_nano
    assert replay.end_time_unix_nano == parts["decode"][1].start_time_unix_nano
    assert attributes(whole)["gen_ai.usage.output_tokens"] == 40


async def test_a_worker_that_is_killed_before_the_first_token_is_a_span_too() -> None:
    """Its request was in its queue. The other one, which had its only slot, moves as well."""
    body = COMPLETION | {"max_tokens": 30}
    async with traced("a", slots=1, rate=50.0) as (real, traces, found):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(lambda: real.client.post("/v1/completions", json=body))
            await real.until(lambda: bool(real.status().gauges.queue_depth))
            os.kill(pid_of(real.workers[0].status), signal.SIGKILL)
        await flush(traces)
    wholes = found.named("text_completion tiny")
    lost = [
        span for whole in wholes for span in found.children(whole) if attributes(span).get("error.type") == "killed"
    ]
    assert len(lost) == 2
    assert sorted(len(found.children(span)) for span in lost) == [0, 4]
    again = [span for span in found.named("worker") if span.links]
    assert {span.links[0].span_id for span in again} == {span.span_id for span in lost}
    assert all(attributes(span)["baton.incarnation"] > attributes(lost[0])["baton.incarnation"] for span in again)


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


@pytest.mark.parametrize(
    ("lines", "continued", "state"),
    [
        ([("traceparent", 1), ("tracestate", "a=1"), ("tracestate", "b=2")], True, "a=1,b=2"),
        ([("traceparent", 1), ("tracestate", "a=1"), ("traceparent", 2)], False, ""),
    ],
    ids=["a state of two lines", "two parents"],
)
async def test_repeated_lines_of_a_context(lines: list[tuple[str, Any]], continued: bool, state: str) -> None:
    """A state may have several lines, which are one list. With two parents there is none."""
    headers = [(name, f"00-{TRACE}-{value:016x}-01" if name == "traceparent" else value) for name, value in lines]
    async with traced() as (real, traces, found):
        assert (await real.client.post("/v1/completions", json=COMPLETION, headers=headers)).status_code == 200
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    assert (whole.trace_id.hex() == TRACE, whole.trace_state) == (continued, state)


@pytest.mark.parametrize("started", [True, False])
async def test_a_request_whose_client_left_has_the_tokens_that_a_worker_counted(started: bool) -> None:
    """None before its first token: a prompt of 0 tokens would be wrong."""
    body = COMPLETION | {"max_tokens": 100_000, "stream": True}
    async with traced("a", slots=1, rate=50.0) as (real, traces, found):
        async with real.client.stream("POST", "/v1/completions", json=body) as first:
            lines = first.aiter_lines()  # kept: its end would be that of the response
            await anext(lines)
            if not started:
                with anyio.move_on_after(0.2):
                    await real.client.post("/v1/completions", json=body)
        await real.until(lambda: not real.status().gauges.slots_active)
        await flush(traces)
    gone = found.named("text_completion tiny")
    assert {attributes(span)["baton.outcome"] for span in gone} == {"client_gone"}
    counted = sorted(attributes(span).get("gen_ai.usage.input_tokens", 0) for span in gone)
    assert counted[-1] > 0
    assert counted[:-1] == ([] if started else [0])


async def test_cached_tokens_are_those_of_the_usage() -> None:
    body = {"model": "tiny", "prompt": "a prompt of a few words " * 8, "max_tokens": 2}
    async with traced() as (real, traces, found):
        await real.client.post("/v1/completions", json=body)
        answer = await real.client.post("/v1/completions", json=body)
        await flush(traces)
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    shown = [
        attributes(span).get("gen_ai.usage.cache_read.input_tokens") for span in found.named("text_completion tiny")
    ]
    assert shown == [None, cached]
    assert cached > 0


async def test_a_prompt_with_several_answers_counts_once() -> None:
    async with traced() as (real, traces, found):
        answer = await real.client.post("/v1/completions", json=COMPLETION | {"n": 3, "max_tokens": 2})
        await flush(traces)
    (whole,) = found.named("text_completion tiny")
    usage, shown = answer.json()["usage"], attributes(whole)
    assert shown["gen_ai.request.choice.count"] == 3
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
    request = TracedRequest("r", "m", "answered", False, 4, 0, sequences)
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


def attempt(
    worker: str, sent_at: float, first_at: float, us: tuple[int, int, int] | None = None, resumed: int = 0
) -> Attempt:
    """A worker that took so many microseconds for tokenization, queue and prefill."""
    started = None if us is None else StartedStream(1, us[0], us[1], us[2], 4)
    return Attempt(worker, 1, sent_at, resumed, started, first_at)


def sequence(
    *attempts: Attempt, queued_s: float = 0.0, last_at: float = NOW - 1, replays: tuple[Replay, ...] = ()
) -> TracedSequence:
    return TracedSequence(0, "stop", NOW - 9, queued_s, last_at, 8, attempts, replays)


def test_times_are_those_of_the_clock_and_end_now() -> None:
    """Whatever the wall clock was when the request came."""
    before = time.time_ns()
    with collector() as found:
        spans = scripted(found, sequence(attempt("a", NOW - 8.5, NOW - 6, (250_000, 500_000, 1_500_000)), queued_s=0.5))
    assert spans == {
        "text_completion m": (NOW - 10, NOW),
        "admission": (NOW - 9, NOW - 8.5),
        "worker": (NOW - 8.5, NOW - 1),
        "tokenize": (NOW - 8.25, NOW - 8),
        "queue": (NOW - 8, NOW - 7.5),
        "prefill": (NOW - 7.5, NOW - 6),
        "decode": (NOW - 6, NOW - 1),
    }
    assert before <= found.named("text_completion m")[0].end_time_unix_nano <= time.time_ns()


@pytest.mark.parametrize("us", [(0, 5_000_000, 2_000_000), (9 << 40, 1_000_000, 2_000_000)])
def test_the_parts_do_not_begin_before_the_worker_got_the_sequence(us: tuple[int, int, int]) -> None:
    """However long the worker says that they took."""
    with collector() as found:
        spans = scripted(found, sequence(attempt("a", NOW - 9, NOW - 6, us)))
    assert spans["prefill"] == (NOW - 8, NOW - 6)
    assert spans["queue"] == (NOW - 9, NOW - 8)
    assert spans["tokenize"] == (NOW - 9, NOW - 9)
    with collector() as found:
        spans = scripted(found, sequence(attempt("a", NOW - 9, NOW - 6, (0, 0, 9 << 40))))
    assert (spans["queue"], spans["prefill"]) == ((NOW - 9, NOW - 9), (NOW - 9, NOW - 6))


def test_each_worker_of_a_sequence_has_its_own_parts() -> None:
    first = attempt("a", NOW - 9, NOW - 6, (0, 0, 1_000_000))
    first.lost_at, first.last_at, first.cause = NOW - 4.5, NOW - 5, "killed"
    second = attempt("b", NOW - 4, NOW - 3, (100_000, 150_000, 500_000), resumed=3)
    replay = Replay(NOW - 5, NOW - 3, "killed")
    with collector() as found:
        scripted(found, sequence(first, second, replays=(replay,)))
    lost, other = found.named("worker")
    (gap,) = found.named("replay")
    (end,) = [span.end_time_unix_nano for span in found.named("text_completion m")]
    assert [
        (attributes(span)["baton.worker"], span.name) for span in (*found.children(lost), *found.children(other))
    ] == [(name, part) for name in ("a", "b") for part in ("tokenize", "queue", "prefill", "decode")]

    def times(spans: list[Any]) -> list[tuple[float, float]]:
        return [
            (round((span.start_time_unix_nano - end) / 1e9, 3), round((span.end_time_unix_nano - end) / 1e9, 3))
            for span in spans
        ]

    assert times([lost, other, gap]) == [(-9, -4.5), (-4, -1), (-5, -3)]
    assert times(found.named("decode")) == [(-6, -5), (-3, -1)]
    assert times(found.named("prefill")) == [(-7, -6), (-3.5, -3)]
    assert [attributes(span)["baton.completion_tokens"] for span in found.named("decode")] == [3, 5]
    assert [link.span_id for span in (other, gap) for link in span.links] == [lost.span_id] * 2


def test_what_no_worker_measured_is_no_span() -> None:
    """As of a sequence that ends in its worker's queue, or waits for a worker until its end."""
    with collector() as found:
        spans = scripted(found, sequence(attempt("a", NOW - 9, 0.0), last_at=NOW - 9))
    assert spans == {"text_completion m": (NOW - 10, NOW), "worker": (NOW - 9, NOW)}
    with collector() as found:
        assert set(scripted(found, sequence(last_at=NOW - 9))) == {"text_completion m"}


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


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://localhost:4317", "http://", "http://[::1", "/v1/traces"])
def test_an_endpoint_is_a_url(url: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"otlp_traces_endpoint is .*; it must be a URL"):
        GatewaySettings(otlp_traces_endpoint=url)


async def test_every_attribute_is_in_the_table_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "observability.md").read_text()
    table = page.partition("\n| Attribute | Spans | Meaning |\n")[2].partition("\n\n")[0]
    listed = {line.split("`")[1] for line in table.splitlines()[1:]}
    body = COMPLETION | {"max_tokens": 30}
    async with traced("a", slots=1, rate=100.0) as (real, traces, found):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: real.client.post("/v1/completions", json=body))
            await real.until(lambda: bool(real.status().gauges.slots_active))
            os.kill(pid_of(real.workers[0].status), signal.SIGKILL)
        more = {"prompt": "a prompt that is cached " * 8, "n": 2, "stream": True, "max_tokens": 1}
        for _ in range(2):
            assert (await real.client.post("/v1/completions", json=COMPLETION | more)).status_code == 200
        await flush(traces)
    assert {name for span in found.spans for name in attributes(span)} == listed
