"""Queries for prompts: which worker is asked, and what becomes of them when it dies, refuses or is silent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from gateway.errors import RefusalCode, RequestError
from gateway.generation.prompt_query import PromptQuery
from gateway.routing.prompt_queries import MAX_PENDING, QUERY_S
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from protocol.commands import Tokenize
from protocol.errors import ErrorCode
from protocol.events import Tokenized
from protocol.request import TextInput
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND

pytestmark = pytest.mark.anyio
QUERY = PromptQuery("tiny", TextInput("hi"), "tokens", special=False)


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class Asked:
    """A query of a client."""

    def __init__(self) -> None:
        self.answer: Tokenized | None = None
        self.error: RequestError | None = None
        self.ended = anyio.Event()
        self.scope = anyio.CancelScope()

    async def run(self, router: Router, query: PromptQuery) -> None:
        with self.scope:
            try:
                self.answer = await router.admission.ask(query, "r")
            except RequestError as error:
                self.error = error
        self.ended.set()

    async def code(self) -> Any:
        await self.ended.wait()
        assert self.error is not None
        return self.error.code


class Desk:
    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.router = Router(GatewaySettings())
        self._group = group

    def ask(self, query: PromptQuery = QUERY) -> Asked:
        asked = Asked()
        self._group.start_soon(asked.run, self.router, query)
        return asked


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    async with anyio.create_task_group() as group:
        yield Desk(group)
        group.cancel_scope.cancel()


async def test_a_worker_is_asked() -> None:
    async with desk() as made:
        worker = FakeWorker("a").join(made.router)
        asked = made.ask()
        (query,) = await worker.wait_queries(1)
        assert query == Tokenize(query.query, "r", TextInput("hi"), "tokens", False)
        worker.say(Tokenized(query.query, 2, (104, 105)))
        await asked.ended.wait()
    assert asked.answer == Tokenized(query.query, 2, (104, 105))


async def test_a_refusal_of_the_worker_is_that_of_the_query() -> None:
    async with desk() as made:
        worker = FakeWorker("a").join(made.router)
        asked = made.ask()
        (query,) = await worker.wait_queries(1)
        worker.say(Tokenized(query.query, text="no template", code=ErrorCode.TEMPLATE, field="messages"))
        assert await asked.code() is ErrorCode.TEMPLATE
    assert asked.error is not None
    assert (asked.error.text, asked.error.field) == ("no template", "messages")


async def test_the_worker_with_the_fewest_queries_is_asked_standbys_too() -> None:
    async with desk() as made:
        workers = [FakeWorker("a").join(made.router), FakeWorker("b").join(made.router, Role.STANDBY)]
        for _ in range(4):
            made.ask()
        for worker in workers:
            assert len(await worker.wait_queries(2)) == 2


async def test_another_worker_is_asked_when_the_first_dies_and_no_third() -> None:
    async with desk() as made:
        workers = [FakeWorker(name).join(made.router) for name in "abc"]
        asked = made.ask()
        await workers[0].wait_queries(1)
        workers[0].die()
        (query,) = await workers[1].wait_queries(1)
        workers[1].die()
        assert await asked.code() is ErrorCode.LOST
        assert workers[2].queries == []
        assert query.query != workers[0].queries[0].query


@pytest.mark.parametrize("code", [ErrorCode.OVERLOADED, ErrorCode.DRAINING, ErrorCode.UNAVAILABLE])
async def test_another_worker_is_asked_when_the_first_has_no_room(code: ErrorCode) -> None:
    async with desk() as made:
        workers = [FakeWorker(name).join(made.router) for name in "ab"]
        asked = made.ask()
        (query,) = await workers[0].wait_queries(1)
        workers[0].say(Tokenized(query.query, text="full", code=code))
        (query,) = await workers[1].wait_queries(1)
        workers[1].say(Tokenized(query.query, text="full", code=code))
        assert await asked.code() is code


async def test_an_earlier_incarnation_answers_nothing() -> None:
    async with desk() as made:
        worker = FakeWorker("a").join(made.router)
        asked = made.ask()
        (query,) = await worker.wait_queries(1)
        worker.die()
        worker.come_back()
        worker.say(Tokenized(query.query, 1, (1,)), incarnation=1)
        assert await asked.code() is ErrorCode.LOST


async def test_a_worker_has_a_bounded_number_of_queries_even_if_clients_leave() -> None:
    async with desk() as made:
        worker = FakeWorker("a").join(made.router)
        every = [made.ask() for _ in range(MAX_PENDING)]
        queries = await worker.wait_queries(MAX_PENDING)
        for asked in every:
            asked.scope.cancel()
        assert await made.ask().code() is ErrorCode.OVERLOADED
        worker.say(Tokenized(queries[0].query, 0))
        made.ask()
        await worker.wait_queries(MAX_PENDING + 1)


async def test_an_answer_has_a_deadline_after_which_the_worker_may_be_asked_again() -> None:
    async with desk() as made:
        worker = FakeWorker("a").join(made.router)
        every = [made.ask() for _ in range(MAX_PENDING)]
        await worker.wait_queries(MAX_PENDING)
        began = anyio.current_time()
        assert [await asked.code() for asked in every] == [ErrorCode.DEADLINE] * MAX_PENDING
        assert anyio.current_time() - began == pytest.approx(QUERY_S)
        made.ask()
        await worker.wait_queries(MAX_PENDING + 1)
        worker.say(Tokenized(worker.queries[0].query, 0))  # late: nobody has it any more


async def test_a_query_that_is_never_answered_does_not_keep_its_model_busy_unnoticed() -> None:
    """The one who unloads models is notified when the model is idle, whatever has ended its last query."""
    async with desk() as made:
        worker = FakeWorker("a").join(made.router)
        lives: list[int] = []
        made.router.watch_activity(lambda: lives.append(made.router.activity("tiny", {"a"}).live))
        made.ask()
        await worker.wait_queries(1)
        await anyio.sleep(2 * QUERY_S)
        assert lives == [0]
        assert made.router.activity("tiny", {"a"}).last_used == pytest.approx(anyio.current_time() - QUERY_S)


async def test_without_a_worker_there_is_no_answer() -> None:
    async with desk() as made:
        assert await made.ask().code() is RefusalCode.MODEL_NOT_FOUND
        worker = FakeWorker("a").join(made.router)
        worker.full = True
        assert await made.ask().code() is ErrorCode.LOST
        worker.die()
        assert await made.ask().code() is ErrorCode.UNAVAILABLE
        made.router.admission.drain_nowait()
        assert await made.ask().code() is ErrorCode.DRAINING
