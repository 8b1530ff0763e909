"""Backpressure of one HTTP/2 stream."""

import anyio
import anyio.lowlevel
import pytest
from hypercorn.asyncio.worker_context import EventWrapper
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BUFFER_LOW_WATER, BufferCompleteError

from gateway.http.connection.send_buffer import LEAST_TAKEN, SendBuffer

pytestmark = pytest.mark.anyio


async def test_a_push_waits_while_the_window_is_closed_and_until_enough_was_taken() -> None:
    buffer, pushed = SendBuffer(EventWrapper), []

    async def push() -> None:
        for number in range(3):
            await buffer.push(bytes(BUFFER_HIGH_WATER))
            pushed.append(number)

    async with anyio.create_task_group() as group:
        group.start_soon(push)
        await anyio.wait_all_tasks_blocked()
        for _ in range(5):
            assert await buffer.pop(0) == b""
            await anyio.wait_all_tasks_blocked()
        assert (pushed, len(buffer.buffer)) == ([], BUFFER_HIGH_WATER)
        await buffer.pop(BUFFER_HIGH_WATER - int(BUFFER_LOW_WATER))
        await anyio.wait_all_tasks_blocked()
        assert pushed == []
        await buffer.pop(1)
        await anyio.wait_all_tasks_blocked()
        assert pushed == [0]
        group.cancel_scope.cancel()


async def test_a_buffer_that_is_closed_takes_no_more() -> None:
    buffer = SendBuffer(EventWrapper)
    buffer.set_complete()
    assert buffer.ended
    with pytest.raises(BufferCompleteError):
        await buffer.push(b"x")


async def test_a_client_that_takes_less_than_the_least_between_two_checks_stalls() -> None:
    buffer = SendBuffer(EventWrapper)
    assert not buffer.stalls(), "there is nothing to take"
    await buffer.push(bytes(3 * LEAST_TAKEN))
    assert not buffer.stalls(), "it had no time"
    await buffer.pop(LEAST_TAKEN)
    assert not buffer.stalls()
    await buffer.pop(LEAST_TAKEN - 1)
    assert buffer.stalls()


async def test_a_client_that_has_taken_everything_does_not_stall() -> None:
    buffer = SendBuffer(EventWrapper)
    for _ in range(3):
        await buffer.push(b"x")
        assert not buffer.stalls()
        await buffer.pop(1)
