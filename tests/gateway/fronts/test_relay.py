"""Requests through a front in the test's own process: clients see what they see without one."""

import re
import socket
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from gateway.fronts.frames import RESPONSE_WINDOW, FrontPulse, FrontReady, InvalidHttpRefused
from gateway.fronts.process import FrontReport
from protocol.errors import ErrorCode
from tests.gateway.fronts.relaying import serve_relayed
from tests.gateway.harness.serving import CHAT, COMPLETION, Served, events, open_raw, serving
from tests.gateway.http.http2 import client
from tests.gateway.http.test_http2_abuse import HEAD, connection

pytestmark = pytest.mark.anyio

relayed = partial(serving, server=serve_relayed)
CASES: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/v1/models", {}, 200),
    ("HEAD", "/v1/models", {}, 200),
    ("GET", "/v1/models/a%2Fb%20c?x=%00&y=\u00e9", {}, 404),
    ("GET", "/some/path", {}, 404),
    ("DELETE", "/v1/models", {}, 405),
    ("POST", "/v1/completions", {"content": b"x"}, 415),
    ("POST", "/v1/completions", {"json": {"model": "tiny"}}, 400),
    ("POST", "/v1/completions", {"json": {"p": "x" * 1_000_000}}, 413),
    ("POST", "/v1/completions", {"json": COMPLETION, "headers": {"x": "y" * 40_000}}, 431),
    ("POST", "/v1/completions", {"json": COMPLETION | {"prompt": "x" * 400_000}}, 200),
    ("GET", "/v1/models", {"headers": {"x-llm-d-inference-fairness-id": "a b"}}, 400),  # of a trusted gateway
    ("GET", "/", {}, 200),
    ("DELETE", "/v1/streams/cmpl-12", {}, 404),
]


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_every_response_is_the_one_without_a_front(http2: bool) -> None:
    found = []
    for server in (serving, relayed):
        responses = []
        async with (
            server(max_body_bytes=500_000, trusted_gateways=("127.0.0.0/8",)) as served,
            client(served.port) as over_http2,
        ):
            web = over_http2 if http2 else served.client
            for number, (method, path, options, status) in enumerate(CASES):
                chosen = {"headers": {}, **options}
                chosen["headers"] = {**chosen["headers"], "x-request-id": f"r{number}"}
                async with anyio.create_task_group() as group:
                    if status == 200 and method == "POST":
                        group.start_soon(_finish_next, served, len(served.worker.submits))
                    answer = await web.request(method, path, **chosen)
                assert answer.status_code == status, path
                kept = [(name, value) for name, value in answer.headers.multi_items() if name != "date"]
                text = answer.text.partition('"id":')[0] if status == 200 and method == "POST" else answer.text
                text = re.sub('"created":[0-9]+', "", text)
                responses.append((path, kept, text))
        found.append(responses)
    assert found[0] == found[1]


async def _finish_next(served: Served, known: int) -> None:
    submit = (await served.worker.wait_submits(known + 1))[-1]
    served.worker.finish(submit.stream, "yes")


@pytest.mark.parametrize("abort", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_frees_its_slot(streaming: bool, tokens: int, abort: bool) -> None:
    async with relayed() as served:
        async with await open_raw(served.port, "/v1/chat/completions", CHAT | {"stream": streaming}) as stream:
            (submit,) = await served.worker.wait_submits(1)
            for token in range(tokens):
                served.worker.token(submit.stream, "x", token)
            if streaming and tokens:
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            if abort:
                raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        assert await served.worker.wait_cancels(1) == [submit.stream]
        assert served.live == 0


async def test_a_client_that_reads_nothing_holds_its_output_in_the_gateway_and_is_dropped() -> None:
    most = 0

    def held_much() -> bool:
        nonlocal most
        most = max(most, served.router.answers.held)
        return most > 20 * RESPONSE_WINDOW or bool(served.worker.cancels)

    async with relayed(client_stall_s=1, max_answer_bytes=1 << 24) as served:
        body = COMPLETION | {"stream": True, "max_tokens": 4000, "ignore_eos": True}
        async with await open_raw(served.port, "/v1/completions", body) as stream:
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            (submit,) = await served.worker.wait_submits(1)
            text = "x" * RESPONSE_WINDOW
            for token in range(200):  # 12.8 MB, which sockets do not hold
                served.worker.token(submit.stream, text, token)
                await anyio.lowlevel.checkpoint()
                held_much()  # a busy machine may drop the client before the last of them
            await served.until(held_much)
            assert most > 20 * RESPONSE_WINDOW
            assert await served.worker.wait_cancels(1) == [submit.stream]
        assert served.router.answers.held == 0


async def test_an_error_of_the_app_is_logged_and_ends_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relayed() as served:

        def broken() -> list[str]:
            raise ZeroDivisionError("a bug")

        async def raises(scope: Any, receive: Any, send: Any) -> None:
            broken()

        with structlog.testing.capture_logs() as logs:
            monkeypatch.setattr(served.app, "_direct", lambda method, path: raises)
            answer = await served.client.get("/v1/models")
            assert answer.status_code == 500
            monkeypatch.undo()
        (line,) = [log for log in logs if log["event"] == "request_failed"]
        assert isinstance(line["exc_info"], ZeroDivisionError)
        assert (await served.client.get("/v1/models")).status_code == 200


async def test_probes_are_answered_on_spare_connections_and_nothing_else() -> None:
    async with (
        relayed(max_connections=1, keep_alive_s=3600) as served,
        await anyio.connect_tcp("127.0.0.1", served.port) as first,
    ):
        await first.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await first.receive()).startswith(b"HTTP/1.1 200")
        assert (await served.client.get("/health/live")).status_code == 200
        refused = await served.client.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert served.listener.refused == 1


async def test_a_front_reports_what_it_refused_by_itself() -> None:
    reports: list[FrontReport] = []
    async with serving(server=partial(serve_relayed, report=reports.append)) as served:
        async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
            await stream.send(b"nonsense\r\n\r\n")
            answer = await stream.receive()
            assert answer.startswith(b"HTTP/1.1 400")
        await served.until(lambda: any(isinstance(report, InvalidHttpRefused) for report in reports))
    assert reports[0] == FrontReady()
    (refused,) = [report for report in reports if isinstance(report, InvalidHttpRefused)]
    assert (refused.status, refused.code) == (400, ErrorCode.INVALID.value)
    assert refused.request_id.encode() in answer
    assert all(report.cpu_s > 0 for report in reports if isinstance(report, FrontPulse))


async def test_a_front_that_stops_reports_its_connections_at_once() -> None:
    reports: list[FrontReport] = []
    stop = anyio.Event()
    server = partial(serve_relayed, report=reports.append, stop=stop)
    async with serving(server=server) as served, await anyio.connect_tcp("127.0.0.1", served.port) as stream:
        await stream.send(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        reports.clear()
        stop.set()
        await served.until(lambda: any(isinstance(report, FrontPulse) and report.stopped for report in reports))
        pulses = [report for report in reports if isinstance(report, FrontPulse)]
        assert {pulse.connections for pulse in pulses if pulse.stopped} == {1}


async def test_a_stream_that_is_reset_counts_until_the_gateways_app_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, most = 150, 100
    started = 0
    gate = anyio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        nonlocal started
        started += 1
        await gate.wait()

    async with relayed() as served:
        direct = served.app._direct
        monkeypatch.setattr(
            served.app, "_direct", lambda method, path: slow if path == "/health/live" else direct(method, path)
        )
        async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
            made = connection()
            for number in range(streams):
                made.send_headers(2 * number + 1, HEAD, end_stream=True)
                made.reset_stream(2 * number + 1)
            await raw.send(made.data_to_send())
            await served.until(lambda: started >= most)
            assert (await served.client.get("/v1/models")).status_code == 200
            before = started
            gate.set()
            await served.until(lambda: started == streams)
    assert before == most


async def test_many_streams_arrive_whole_and_in_order() -> None:
    async with relayed(slots=64) as served, anyio.create_task_group() as group:
        texts: dict[int, str] = {}

        async def one(number: int) -> None:
            body = COMPLETION | {"stream": True, "max_tokens": 200, "prompt": f"{number}"}
            async with served.client.stream("POST", "/v1/completions", json=body) as response:
                got = await events(response)
            assert got[-1] == "[DONE]"
            texts[number] = "".join(each["choices"][0]["text"] for each in got[:-1])

        for number in range(50):
            group.start_soon(one, number)
        submits = await served.worker.wait_submits(50)
        for token in range(40):
            for submit in submits:
                served.worker.token(submit.stream, f"{token} ", token)
            await anyio.lowlevel.checkpoint()
        for submit in submits:
            served.worker.finish(submit.stream)
        await served.until(lambda: len(texts) == 50)
    assert set(texts.values()) == {"".join(f"{token} " for token in range(40))}
