"""The queue of a request's body: nothing waits for an app that has ended, or for a client that has left."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.http.connection.body_queue import BodyQueue

pytestmark = pytest.mark.anyio


class Queue:
    def __init__(self, most: int | None = 10) -> None:
        self.read = 0
        self.queue = BodyQueue(most, self._on_read)

    async def _on_read(self, size: int) -> None:
        self.read += size

    async def put(self, body: bytes, more: bool = True) -> None:
        await self.queue.put({"type": "http.request", "body": body, "more_body": more})

    async def leave(self) -> None:
        await self.queue.put({"type": "http.disconnect"})

    async def receive(self) -> Any:
        message = await self.queue.receive()
        return message.get("body", message["type"]), message.get("more_body")


async def test_pieces_that_are_not_read_are_one_message() -> None:
    made = Queue()
    for piece in (b"a", b"", b"b"):
        await made.put(piece)
    assert await made.receive() == (b"ab", True)
    await made.put(b"c", more=False)
    assert await made.receive() == (b"c", False)
    await made.leave()
    assert [await made.receive() for _ in range(2)] == [("http.disconnect", None)] * 2
    assert made.read == 3


async def test_the_end_of_a_body_without_bytes_is_a_message() -> None:
    made = Queue()
    await made.put(b"", more=False)
    assert await made.receive() == (b"", False)


@pytest.mark.parametrize("end", ["the app reads", "the app ends", "the client leaves"])
async def test_a_put_over_the_bound_waits_until(end: str) -> None:
    made, done = Queue(), anyio.Event()

    async def put() -> None:
        await made.put(b"x" * 10)
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(put)
        await anyio.wait_all_tasks_blocked()
        assert not done.is_set()
        if end == "the app reads":
            await made.receive()
        elif end == "the app ends":
            await made.queue.close()
        else:
            await made.leave()
    assert done.is_set()
    assert made.read == (0 if end == "the client leaves" else 10)


async def test_without_a_bound_no_put_waits() -> None:
    made = Queue(most=None)
    await made.put(b"x" * 1000)
    assert await made.receive() == (b"x" * 1000, True)


async def test_what_comes_after_the_app_has_ended_is_discarded_and_counted() -> None:
    made = Queue()
    await made.queue.close()
    for _ in range(5):
        await made.put(b"x" * 100)
    assert made.read == 500


async def test_what_had_arrived_before_the_client_left_is_still_read() -> None:
    made = Queue()
    await made.put(b"abc")
    await made.leave()
    await made.put(b"late", more=False)
    assert await made.receive() == (b"abc", True)
    assert await made.receive() == ("http.disconnect", None)


async def test_several_readers_each_get_their_message() -> None:
    made = Queue()
    got: list[Any] = []

    async def read() -> None:
        got.append(await made.receive())

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await made.put(b"a", more=False)
        await anyio.wait_all_tasks_blocked()
        await made.leave()
    assert got == [(b"a", False), ("http.disconnect", None)]
