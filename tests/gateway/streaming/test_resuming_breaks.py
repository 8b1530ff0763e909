"""Any number of broken connections, anywhere, change nothing of a kept stream."""

import asyncio
import json
import logging
from typing import Any

import anyio
import anyio.lowlevel
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.streaming.resumable import StreamState
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.serving import CHAT, COMPLETION
from tests.gateway.harness.virtual import VirtualLoop
from tests.gateway.streaming.resuming import Gateway, gateway, stream_id


class Watcher:
    """A client that loses its connection now and then, with events on the way that it has not seen."""

    def __init__(self, served: Gateway, connection: Connection) -> None:
        self._served = served
        self._connection = connection
        self.id = stream_id(connection)
        self.seen: list[bytes] = []
        self.known: dict[int, bytes] = {}
        """Every event that was ever sent."""

    async def read(self) -> None:
        await anyio.sleep(0.01)
        at = len(self.seen)
        for number, event in enumerate(self._connection.events, at + 1):
            assert event.startswith(b"id: %s-%d\n" % (self.id.encode(), number))
            assert self.known.setdefault(number, event) == event, "the same event is the same bytes"

    async def lose(self, unseen: int, away_s: float, by_header: bool) -> None:
        await self.read()
        events = self._connection.events
        self.seen += events[: max(0, len(events) - unseen)]
        await self._connection.leave()
        await anyio.sleep(away_s)
        at, path = len(self.seen), f"/v1/streams/{self.id}"
        if by_header and at:
            self._connection = self._served.open("GET", path, last_event_id=f"{self.id}-{at}")
        else:
            self._connection = self._served.open("GET", path, query=f"starting_after={at}")

    async def end(self) -> list[Any]:
        await self._connection.ended.wait()
        assert self._connection.status == 200
        await self.read()
        *chunks, done = [event.split(b"\ndata: ")[1] for event in self.seen + self._connection.events]
        assert done == b"[DONE]"
        return [json.loads(chunk) for chunk in chunks]


actions = st.one_of(
    st.tuples(st.just("token"), st.integers(0, 2), st.sampled_from(["a", "é", "\n\n", "\U0001f600", 'x"y', ""])),
    st.tuples(st.just("lose"), st.integers(0, 9), st.sampled_from([0.0, 0.5, 30.0]), st.booleans()),
    st.tuples(st.just("read")),
    st.tuples(st.just("finish"), st.integers(1, 2)),
)


@given(st.booleans(), st.lists(actions, max_size=25))
@settings(deadline=None, max_examples=60)
def test_no_break_changes_a_stream(chat: bool, script: list[Any]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(_break(chat, script), 1e6))
    finally:
        loop.close()


async def _break(chat: bool, script: list[Any]) -> None:
    body = (CHAT if chat else COMPLETION) | {"n": 3, "stream": True, "max_tokens": 100, "return_token_ids": True}
    body["stream_options"] = {"resume_s": 60, "include_usage": True}
    async with gateway() as served:
        connection = served.open("POST", "/v1/chat/completions" if chat else "/v1/completions", body)
        numbers = [submit.stream for submit in await served.worker.wait_submits(3)]
        texts, tokens, ended = ["", "", ""], [[0], [0], [0]], [False] * 3
        for number in numbers:
            served.worker.token(number, "", 0)
        await connection.until(1)
        watcher = Watcher(served, connection)
        for count, (action, *rest) in enumerate(script, 1):
            if action == "token" and not ended[rest[0]]:
                texts[rest[0]] += rest[1]
                tokens[rest[0]].append(count)
                served.worker.token(numbers[rest[0]], rest[1], count)
            elif action == "lose":
                await watcher.lose(*rest)
            elif action == "read":
                await watcher.read()
            elif (
                action == "finish"
                and not all(ended[:index] + ended[index + 1 :] for index in rest)
                and not ended[rest[0]]
            ):
                ended[rest[0]] = True
                served.worker.finish(numbers[rest[0]])
        for index in range(3):
            if not ended[index]:
                served.worker.finish(numbers[index])
        *chunks, usage = await watcher.end()
        got: list[list[Any]] = [["", [], 0], ["", [], 0], ["", [], 0]]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            found = got[choice["index"]]
            found[0] += choice["delta"].get("content", "") if chat else choice["text"]
            found[1] += choice.get("token_ids", [])
            found[2] += choice["finish_reason"] == "stop"
        assert got == [[texts[index], tokens[index], 1] for index in range(3)]
        assert usage["choices"] == []
        assert served.worker.cancels == []
        assert served.count(StreamState.READ) == served.count(StreamState.DETACHED) == 0
