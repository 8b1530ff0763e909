"""Tokenize queue: requests in order, with expensive prompts built on a thread."""

import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
import structlog

from protocol.commands import Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import Failed, Finished, Tokenized
from protocol.request import TextInput
from tests.workers.process.harness.gateway_peer import submit
from workers.process.output_processor import OutputProcessor, SubmitResult
from workers.process.prompts.cost import CHARACTERS_PER_TOKEN
from workers.process.prompts.tokenize_queue import MAX_INLINE_COST, MAX_QUERIES, TokenizeQueue
from workers.text.byte_tokenizer import ByteTokenizer

pytestmark = pytest.mark.anyio

LONG = "x" * (MAX_INLINE_COST + 1)


class Slow(ByteTokenizer):
    """Tokenizer that waits on the thread until the test releases it, and panics at "!"."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.threads: list[bool] = []

    def encode(self, text: str, *, special: bool) -> list[int]:
        in_thread = threading.current_thread() is not threading.main_thread()
        self.threads.append(in_thread)
        if in_thread:
            self.begun.release()
            self.go.acquire()
        if "!" in text:
            raise SystemError("a panic")
        return super().encode(text, special=special)


class Desk:
    """Tokenize queue over an output processor, with the admissions of its requests."""

    def __init__(self, max_live: int = 64) -> None:
        self.slow = Slow()
        self.now = 0.0
        self.processor = OutputProcessor(self.slow, max_live=max_live, clock=lambda: self.now)
        self.queue = TokenizeQueue(self.processor, lambda: self.now, self._admitted, self._answered)
        self.came: list[SubmitResult] = []
        self.answers: list[Tokenized] = []
        self._news = anyio.Event()

    def _admitted(self, result: SubmitResult) -> None:
        self.came.append(result)
        self._news.set()

    def _answered(self, answer: Tokenized) -> None:
        self.answers.append(answer)
        self._news.set()

    async def answered(self, count: int) -> list[int]:
        """Wait until so many queries are answered, and return them."""
        while len(self.answers) < count:
            self._news = anyio.Event()
            await self._news.wait()
        return [answer.query for answer in self.answers]

    async def until(self, count: int) -> list[int]:
        """Wait until so many queued streams are admitted or refused, and return them."""
        while len(self.came) < count:
            self._news = anyio.Event()
            await self._news.wait()
        return [stream_of(result) for result in self.came]

    async def begun(self) -> None:
        """Wait until the thread starts on a prompt."""
        await anyio.to_thread.run_sync(self.slow.begun.acquire)


def stream_of(result: SubmitResult) -> int:
    ended = result.request or result.answer
    assert ended is not None
    return ended.stream


@pytest.fixture
async def desk() -> Any:
    desk = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(desk.queue.run)
        yield desk
        desk.slow.go.release(100)
        group.cancel_scope.cancel()


def resumed(tokens: int, text: str) -> Submit:
    return submit(1, text, resume=(120,) * tokens)


async def test_short_prompts_are_built_at_once(desk: Desk) -> None:
    result = desk.queue.submit(submit(1, "x" * MAX_INLINE_COST))
    assert result is not None
    assert result.request is not None
    assert desk.slow.threads == [False]
    assert desk.queue.live == 1


async def test_long_prompts_are_built_on_a_thread_and_keep_their_order(desk: Desk) -> None:
    assert desk.queue.submit(submit(1, LONG)) is None
    await desk.begun()
    assert desk.queue.submit(submit(2)) is None, "a short one behind it waits"
    assert desk.queue.submit(submit(3, LONG)) is None
    assert desk.queue.submit(submit(4)) is None
    assert (desk.queue.live, desk.came) == (4, [])
    assert all(desk.queue.is_live(stream) for stream in (1, 2, 3, 4))
    desk.slow.go.release(2)
    assert await desk.until(4) == [1, 2, 3, 4]
    assert desk.slow.threads == [True, False, True, False]
    assert desk.processor.live == desk.queue.live == 4
    assert desk.queue.submit(submit(5)) is not None, "and then they are quick again"


@pytest.mark.parametrize(
    ("given", "long"),
    [
        (resumed(10, "x" * (MAX_INLINE_COST - 10 * CHARACTERS_PER_TOKEN)), False),
        (resumed(10, "x" * (MAX_INLINE_COST - 10 * CHARACTERS_PER_TOKEN + 1)), True),
    ],
    ids=["at the edge", "over it"],
)
async def test_resumed_tokens_count(desk: Desk, given: Submit, long: bool) -> None:
    assert (desk.queue.submit(given) is None) == long


async def test_a_request_cancelled_while_its_prompt_is_built_is_not_admitted(desk: Desk) -> None:
    for stream in (1, 2, 3):
        desk.queue.submit(submit(stream, LONG))
    await desk.begun()
    for stream in (1, 3):
        ended = desk.queue.cancel(stream)
        assert isinstance(ended, Finished)
        assert ended.reason == "cancelled"
        assert desk.queue.cancel(stream) is None, "once"
    assert desk.queue.submit(submit(4)) is None, "the thread is still at the first"
    desk.slow.go.release(2)
    assert await desk.until(2) == [2, 4]
    assert desk.processor.live == 2


async def test_a_panic_in_the_thread_ends_that_request(desk: Desk) -> None:
    desk.queue.submit(submit(1, f"{LONG}!"))
    desk.queue.submit(submit(2))
    desk.slow.go.release()
    with structlog.testing.capture_logs() as logs:
        assert await desk.until(2) == [1, 2]
    answer = desk.came[0].answer
    assert isinstance(answer, Failed)
    assert answer.code is ErrorCode.INTERNAL
    assert desk.came[1].request is not None
    assert [line["event"] for line in logs] == ["admission_failed", "request_admitted"]


async def test_a_refusal_on_the_thread_names_the_field(desk: Desk) -> None:
    desk.queue.submit(submit(1, "x" * (1 << 21)))
    desk.slow.go.release()
    await desk.until(1)
    answer = desk.came[0].answer
    assert isinstance(answer, Failed)
    assert (answer.code, answer.field) == (ErrorCode.CONTEXT, "prompt")


async def test_waiting_requests_count_for_the_bound() -> None:
    desk = Desk(max_live=3)
    assert desk.queue.submit(submit(1)) is not None
    assert desk.queue.submit(submit(2, LONG)) is None
    assert desk.queue.submit(submit(3)) is None
    refused = desk.queue.submit(submit(4))
    assert refused is not None
    assert isinstance(refused.answer, Failed)
    assert refused.answer.code is ErrorCode.OVERLOADED
    failed = desk.queue.fail_all(ErrorCode.DRAINING, "bye")
    assert [(each.stream, each.code) for each in failed] == [(stream, ErrorCode.DRAINING) for stream in (1, 2, 3)]
    assert desk.queue.live == 0


async def test_a_deadline_counts_from_the_arrival(desk: Desk) -> None:
    desk.queue.submit(submit(1, LONG, deadline_ms=1000))
    await desk.begun()
    desk.now = 5.0
    desk.slow.go.release()
    await desk.until(1)
    assert desk.processor.next_deadline() == 1.0
    assert [failed.stream for failed in desk.processor.expire()] == [1]


def query(number: int, text: str = "hello", **fields: Any) -> Tokenize:
    return Tokenize(number, f"r{number}", TextInput(text), **fields)


async def test_queries_are_answered_when_no_request_waits(desk: Desk) -> None:
    desk.queue.submit(submit(1, LONG))
    await desk.begun()
    assert desk.queue.ask(query(7)) is None
    assert desk.queue.ask(query(8, LONG)) is None
    desk.queue.submit(submit(2))
    desk.slow.go.release()
    assert await desk.until(2) == [1, 2]
    desk.slow.go.release()
    assert await desk.answered(2) == [7, 8]
    assert [answer.count for answer in desk.answers] == [5, len(LONG)]
    assert desk.slow.threads == [True, False, False, True], "a long query is answered on the thread"
    assert desk.queue.live == 2, "a query is no sequence"


async def test_a_request_waits_for_one_query_at_most(desk: Desk) -> None:
    for number in (7, 8):
        desk.queue.ask(query(number, LONG))
    await desk.begun()
    assert desk.queue.submit(submit(1)) is None
    desk.slow.go.release()
    assert await desk.until(1) == [1]
    assert [answer.query for answer in desk.answers] == [7]
    desk.slow.go.release()
    assert await desk.answered(2) == [7, 8]


async def test_a_panic_ends_that_query(desk: Desk) -> None:
    desk.queue.ask(query(7, f"{LONG}!"))
    desk.queue.ask(query(8))
    desk.slow.go.release()
    with structlog.testing.capture_logs() as logs:
        assert await desk.answered(2) == [7, 8]
    assert (desk.answers[0].code, desk.answers[1].code) == (ErrorCode.INTERNAL, None)
    assert [line["event"] for line in logs] == ["query_failed"]


async def test_waiting_queries_are_bounded(desk: Desk) -> None:
    desk.queue.submit(submit(1, LONG))
    await desk.begun()
    assert [desk.queue.ask(query(number)) for number in range(MAX_QUERIES)] == [None] * MAX_QUERIES
    refusal = desk.queue.ask(query(MAX_QUERIES))
    assert refusal is not None
    assert (refusal.query, refusal.code) == (MAX_QUERIES, ErrorCode.OVERLOADED)
    desk.slow.go.release()
    assert await desk.answered(MAX_QUERIES) == [*range(MAX_QUERIES)]
