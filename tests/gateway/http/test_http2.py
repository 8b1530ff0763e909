"""The same over HTTP/2, which the server also speaks on a plain socket."""

import json
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from hyperframe.frame import Frame, GoAwayFrame

from gateway.http.http2 import EVERY_STREAM, WholeBodies, goaway
from protocol.events import Usage
from tests.gateway.harness.serving import COMPLETION, events, serving
from tests.gateway.http.http2 import client, whole_stream

pytestmark = pytest.mark.anyio


async def test_streams_share_a_connection() -> None:
    async with serving() as served, client(served.port) as http:
        got: dict[str, list[Any]] = {}

        async def stream(prompt: str) -> None:
            body = COMPLETION | {"stream": True, "prompt": prompt}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                assert response.http_version == "HTTP/2"
                got[prompt] = await events(response)

        async with anyio.create_task_group() as group:
            for prompt in ("a", "b"):
                group.start_soon(stream, prompt)
            submits = await served.worker.wait_submits(2)
            for submit in submits:
                served.worker.token(submit.stream, submit.input.text, 1)  # type: ignore[union-attr]
            for submit in submits:
                served.worker.finish(submit.stream, "!", usage=Usage(1, 1))
        for prompt, found in got.items():
            assert found.pop() == "[DONE]"
            assert "".join(chunk["choices"][0]["text"] for chunk in found) == f"{prompt}!"
        assert served.worker.cancels == []


async def test_a_connection_that_closes_frees_all_its_slots() -> None:
    async with serving() as served:
        async with client(served.port) as http, anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(lambda: http.post("/v1/completions", json=COMPLETION))
            submits = await served.worker.wait_submits(2)
            group.cancel_scope.cancel()
        assert sorted(await served.worker.wait_cancels(2)) == [submit.stream for submit in submits]
        assert served.live == 0


async def test_an_idle_connection_whose_client_leaves_is_closed() -> None:
    async with serving(keep_alive_s=3600) as served:
        async with client(served.port) as http:
            assert (await http.get("/health/live")).http_version == "HTTP/2"
            assert served.listener.connections == 1
        await served.until(lambda: served.listener.connections == 0)


async def test_a_body_over_the_bound_is_refused() -> None:
    async with serving(max_body_bytes=1000) as served, client(served.port) as http:
        response = await http.post("/v1/completions", content=b" " * 1500, headers={"content-type": "application/json"})
        assert (response.status_code, response.http_version) == (413, "HTTP/2")
        assert (await http.get("/health/live")).status_code == 200


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 413), ("/nope", 404), ("/health/live", 405)])
async def test_an_answer_to_half_a_body_harms_no_other_stream(path: str, status: int) -> None:
    async with serving(max_body_bytes=1000) as served, client(served.port) as http, whole_stream(served, http):
        response = await http.post(path, content=b" " * 1_000_000, headers={"content-type": "application/json"})
        assert response.status_code == status


async def test_a_body_that_never_ends_is_waited_for_within_its_time() -> None:
    never = anyio.Event()

    async def receive() -> dict[str, Any]:
        await never.wait()
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 400})
        await send({"type": "http.response.body", "body": b"no"})

    await WholeBodies(app, limit_s=0.01)({"type": "http", "http_version": "2"}, receive, send)
    assert [(message.get("body"), message.get("more_body")) for message in sent[1:]] == [(b"no", True), (None, None)]


async def test_many_requests_on_a_connection_end_no_stream_on_it() -> None:
    async with serving() as served, client(served.port) as http, whole_stream(served, http):
        for _ in range(1001):  # Hypercorn's own limit is 1,000
            await http.get("/health/live")


def test_goaway_is_the_rfcs() -> None:
    frame, _ = Frame.parse_frame_header(memoryview(goaway(EVERY_STREAM)[:9]))
    frame.parse_body(memoryview(goaway(EVERY_STREAM)[9:]))
    assert isinstance(frame, GoAwayFrame)
    assert (frame.stream_id, frame.last_stream_id, frame.error_code) == (0, EVERY_STREAM, 0)
    assert goaway(5) == GoAwayFrame(last_stream_id=5).serialize()


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "connection"])
async def test_a_stream_whose_stream_or_connection_broke_is_resumed(whole: bool) -> None:
    body = COMPLETION | {"stream": True, "stream_options": {"resume_s": 60}}
    async with serving() as served, client(served.port) as first, client(served.port) as other:

        async def begin() -> None:
            (submit,) = await served.worker.wait_submits(1)
            for text in "abc":
                served.worker.token(submit.stream, text, 1)

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            async with first.stream("POST", "/v1/completions", json=body) as response:
                path = f"/v1/streams/{response.headers['x-stream-id']}"
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        seen = line.removeprefix("id: ")
                    if '"text":"' in line:
                        break
            if whole:
                await first.aclose()
        served.worker.finish(served.worker.submits[0].stream, "d")
        headers = {"last-event-id": seen}
        again = await (other if whole else first).get(path, headers=headers)
        assert (again.status_code, again.http_version) == (200, "HTTP/2")
        data = [line.removeprefix("data: ") for line in again.text.split("\n") if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        text = "".join(json.loads(each)["choices"][0]["text"] for each in data)
        assert "abcd".endswith(text)
        assert len(text) < 4
        assert served.worker.cancels == []
