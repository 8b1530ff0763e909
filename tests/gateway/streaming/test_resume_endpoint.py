"""Streams that are picked up after their client's connection ended, over real sockets."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from protocol.events import Usage
from tests.gateway.faults.cutting import breaking_way
from tests.gateway.harness.asgi import without_comments
from tests.gateway.harness.engines import EngineWorker, undisturbed
from tests.gateway.harness.serving import CHAT, COMPLETION, Served, events, serving

pytestmark = pytest.mark.anyio
OPTIONS = {"stream": True, "stream_options": {"include_usage": True, "resume_s": 30}}
TOKENS = ("Hel", "lo ", "\n\n", '"é', "\U0001f600")


class Reading:
    """The events of a response as they come, byte for byte."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._bytes = response.aiter_raw()
        self._rest = b""

    async def events(self, count: int) -> list[bytes]:
        """The next so many."""
        found: list[bytes] = []
        while len(found) < count:
            head, end, rest = self._rest.partition(b"\n\n")
            if end:
                self._rest = rest
                if event := without_comments(head):
                    found.append(event)
            else:
                self._rest += await anext(self._bytes)
        return found


@asynccontextmanager
async def reading(served: Served, method: str, path: str, **request: Any) -> AsyncIterator[Reading]:
    """A response on a connection of its own, which ends with this context, wherever the response is."""
    base = f"http://127.0.0.1:{served.port}"
    async with (
        httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as client,
        client.stream(method, path, **request) as response,
    ):
        yield Reading(response)


class Run:
    """One request whose tokens come one by one, each after the one before was read."""

    def __init__(self, served: Served, path: str, n: int) -> None:
        self._served = served
        self._n = n
        self._numbers: list[int] = []
        self._made = [0] * n
        self.per_choice = len(TOKENS) + 1
        self.chat = "chat" in path

    async def placed(self) -> None:
        submits = await self._served.worker.wait_submits(len(self._served.worker.submits) or self._n)
        self._numbers = [submit.stream for submit in submits[-self._n :]]

    def more(self, step: int) -> int:
        """One token for one choice, or its end; the number of events that come of it."""
        choice, worker = step % self._n, self._served.worker
        made, number = self._made[choice], self._numbers[choice]
        self._made[choice] += 1
        if made < len(TOKENS):
            worker.token(number, TOKENS[made], made)
        else:
            worker.finish(number, usage=Usage(3, len(TOKENS)))
        last = step == self.steps - 1
        return 1 + (made == 0 and self.chat) + 2 * last  # the role; the usage and the end

    @property
    def steps(self) -> int:
        return self.per_choice * self._n


async def begin(served: Served, path: str, n: int) -> Run:
    run = Run(served, path, n)
    known = len(served.worker.submits)
    await served.worker.wait_submits(known + n)
    await run.placed()
    return run


def neutral(found: list[bytes]) -> list[bytes]:
    """Without what differs between any two requests."""
    return [re.sub(rb'cmpl-[0-9a-f]{24}|"created":\d+', b"", event) for event in found]


async def play(served: Served, path: str, n: int, break_at: int | None, unseen: int) -> list[bytes]:
    """All events of a request. Before step `break_at` the connection ends, and the client has not seen the last
    `unseen` events that were sent to it."""
    body = (CHAT if "chat" in path else COMPLETION) | OPTIONS | {"n": n}
    found: list[bytes] = []
    lost: list[bytes] = []
    async with anyio.create_task_group() as group:
        run: list[Run] = []

        async def watch() -> None:
            run.append(await begin(served, path, n))
            run[0].more(0)

        group.start_soon(watch)
        async with reading(served, "POST", path, json=body) as first:
            found += await first.events(1 + run[0].chat)
            for step in range(1, run[0].steps if break_at is None else break_at):
                found += await first.events(run[0].more(step))
            stream_id = first.response.headers["x-stream-id"]
        if break_at is None:
            return found
        at = max(0, len(found) - unseen)
        found, lost = found[:at], found[at:]
        headers = {"last-event-id": f"{stream_id}-{at}"} if at else {}
        async with reading(served, "GET", f"/v1/streams/{stream_id}", headers=headers) as second:
            assert second.response.status_code == 200
            assert await second.events(len(lost)) == lost, "the same bytes again"
            found += lost
            for step in range(break_at, run[0].steps):
                found += await second.events(run[0].more(step))
    return found


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_wherever_it_breaks_the_stream_is_the_undisturbed_one(path: str, n: int) -> None:
    async with serving() as served:
        expected = neutral(await play(served, path, n, None, 0))
        assert expected[-1].endswith(b"data: [DONE]")
        for break_at in range(1, (len(TOKENS) + 1) * n):
            for unseen in (0, 1, 3):
                assert neutral(await play(served, path, n, break_at, unseen)) == expected
        assert served.worker.cancels == []
        assert served.live == 0


async def test_every_event_has_an_id_of_its_own() -> None:
    async with serving() as served:
        found = await play(served, "/v1/chat/completions", 2, None, 0)
    ids = [re.fullmatch(rb"id: chatcmpl-[0-9a-f]{24}-(\d+)\ndata: .*", event) for event in found]
    assert [int(match.group(1)) for match in ids if match] == list(range(1, len(found) + 1))


async def test_an_openai_client_goes_on() -> None:
    """Each chunk is an event: who counts them knows where it was."""
    async with serving() as served, breaking_way(served.port, b'"lo ') as way, anyio.create_task_group() as group:

        async def answer() -> None:
            (submit,) = await served.worker.wait_submits(1)
            for i, piece in enumerate(TOKENS):
                served.worker.token(submit.stream, piece, i)
                await anyio.sleep(0.01)
            served.worker.finish(submit.stream, usage=Usage(3, len(TOKENS)))

        group.start_soon(answer)
        base = f"http://127.0.0.1:{way.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            chunks: list[ChatCompletionChunk] = []
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                extra_body={"stream_options": {"include_usage": True, "resume_s": 30}},
            )

            async def read() -> None:
                async for chunk in stream:
                    chunks.append(chunk)

            with pytest.raises((openai.APIConnectionError, httpx.TransportError)):
                await read()
            assert chunks
            assert not any(chunk.usage for chunk in chunks)
            rest = await client.get(
                f"/streams/{chunks[0].id}",
                cast_to=ChatCompletionChunk,
                options={"params": {"starting_after": len(chunks)}},
                stream=True,
                stream_cls=openai.AsyncStream[ChatCompletionChunk],
            )
            async for chunk in rest:
                chunks.append(chunk)
    assert way.cuts == 0
    *parts, usage = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "".join(TOKENS)
    assert parts[-1].choices[0].finish_reason == "stop"
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(TOKENS)
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("end", ["dies", "is drained", "leaves"])
async def test_workers_may_go_while_nobody_reads(end: str) -> None:
    body = COMPLETION | OPTIONS | {"n": 2, "max_tokens": 30, "seed": 7, "return_token_ids": True}
    async with serving("a", "b", make=EngineWorker) as served, anyio.create_task_group() as group:
        workers = [worker for worker in served.workers if isinstance(worker, EngineWorker)]

        async def compute() -> None:
            await served.until(lambda: sum(len(worker.submits) for worker in workers) == 2)
            for worker in workers * 3:
                worker.step()

        group.start_soon(compute)
        async with reading(served, "POST", "/v1/completions", json=body) as first:
            submits = [submit for worker in workers for submit in worker.submits]
            expected = [undisturbed(submit) for submit in sorted(submits, key=lambda submit: submit.sampling.seed)]
            stream_id = first.response.headers["x-stream-id"]
            found = await first.events(1)
        holder, other = sorted(workers, key=lambda worker: len(worker.submits), reverse=True)
        assert served.live == 2, "it goes on while nobody reads"
        ends: dict[str, Callable[[], object]] = {
            "dies": holder.die,
            "is drained": lambda: served.router.migrate(holder.name),
            "leaves": holder.leave,
        }
        ends[end]()
        await served.until(lambda: bool(other.submits))
        while served.live:
            other.step()
            await anyio.lowlevel.checkpoint()
        last = {"last-event-id": f"{stream_id}-1"}
        async with reading(served, "GET", f"/v1/streams/{stream_id}", headers=last) as second:
            got = found + [event async for event in _rest(second)]
        chunks = await events(httpx.Response(200, content=b"\n\n".join(got) + b"\n\n"))
    for index, answer in enumerate(expected):
        choices = [chunk["choices"][0] for chunk in chunks[:-2] if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == answer.text
        assert tuple(token for choice in choices for token in choice["token_ids"]) == answer.tokens
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [answer.reason]


async def _rest(reading: Reading) -> AsyncIterator[bytes]:
    while True:
        (event,) = await reading.events(1)
        yield event
        if event.endswith(b"data: [DONE]"):
            return


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/streams/chatcmpl-unknown", 404),
        ("DELETE", "/v1/streams/chatcmpl-unknown", 404),
        ("GET", "/v1/streams/", 404),
        ("GET", "/v1/streams", 404),
        ("POST", "/v1/streams/chatcmpl-unknown", 405),
    ],
)
async def test_what_is_no_stream(method: str, path: str, status: int) -> None:
    async with serving() as served:
        answer = await served.client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert len(answer.headers.get_list("x-request-id")) == 1


async def test_who_asks_for_the_head_alone_takes_no_stream() -> None:
    async with serving() as served, anyio.create_task_group() as group:

        async def first_token() -> None:
            (submit,) = await served.worker.wait_submits(1)
            served.worker.token(submit.stream, "a", 0)

        group.start_soon(first_token)
        async with reading(served, "POST", "/v1/completions", json=COMPLETION | OPTIONS) as first:
            await first.events(1)
            head = await served.client.head(f"/v1/streams/{first.response.headers['x-stream-id']}")
            assert (head.status_code, sorted(head.headers["allow"].split(", "))) == (405, ["DELETE", "GET"])
            served.worker.finish(served.worker.submits[0].stream, usage=Usage(3, 1))
            assert (await first.events(3))[-1].endswith(b"[DONE]")


async def test_streams_want_the_key_too() -> None:
    async with serving(api_key="secret") as served:
        refused = await served.client.get("/v1/streams/cmpl-unknown")
        assert refused.status_code == 401
        known = await served.client.get("/v1/streams/cmpl-unknown", headers={"authorization": "Bearer secret"})
        assert known.status_code == 404
