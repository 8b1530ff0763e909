"""Calls from a thread on the event loop: all of them, in order, whatever they raise, and without losing the GIL."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from workers.host.loop_calls import CHUNK, LoopCalls


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("count", [1, 3 * CHUNK])
def test_calls_of_a_thread_are_made_in_order(loop: asyncio.AbstractEventLoop, count: int) -> None:
    """More calls than the pipe takes bytes, too."""
    calls, made = LoopCalls(loop), list[int]()

    def post() -> None:
        for number in range(count):
            calls.call_soon(lambda number=number: made.append(number))  # type: ignore[misc]
        calls.call_soon(loop.stop)

    thread = threading.Thread(target=post)
    thread.start()
    thread.join()
    assert not made
    loop.run_forever()
    assert made == list(range(count))
    calls.close()


def test_a_call_that_raises_is_reported_and_the_next_ones_are_made(loop: asyncio.AbstractEventLoop) -> None:
    calls, made, received = LoopCalls(loop), list[str](), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: received.append(context))
    calls.call_soon(lambda: 1 // 0)
    calls.call_soon(lambda: made.append("next"))
    calls.call_soon(loop.stop)
    loop.run_forever()
    assert made == ["next"]
    assert [type(context["exception"]) for context in received] == [ZeroDivisionError]
    calls.close()


def test_a_call_may_pass_calls(loop: asyncio.AbstractEventLoop) -> None:
    calls = LoopCalls(loop)
    calls.call_soon(lambda: calls.call_soon(loop.stop))
    loop.run_forever()
    calls.close()


def test_closed_calls_are_refused_and_waiting_ones_dropped(loop: asyncio.AbstractEventLoop) -> None:
    calls, made = LoopCalls(loop), list[int]()
    calls.call_soon(lambda: made.append(1))
    calls.close()
    with pytest.raises(RuntimeError, match="no more calls"):
        calls.call_soon(lambda: made.append(2))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert not made


def test_the_gil_is_kept(loop: asyncio.AbstractEventLoop) -> None:
    """A thread that waits for the GIL all the time does not get it during calls."""
    calls, turns, ended = LoopCalls(loop), [0], threading.Event()

    def wait_for_the_gil() -> None:
        while not ended.is_set():
            time.sleep(0)
            turns[0] += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=wait_for_the_gil)
    thread.start()
    try:
        sys.setswitchinterval(1000.0)
        before = turns[0]
        for _ in range(1000):
            calls.call_soon(loop.stop)
        assert turns[0] == before
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
    calls.close()
