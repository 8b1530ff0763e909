"""Asks workers for the tokens or the text of prompts, and receives their answers."""

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass

import anyio

from actors.supervision.worker import WorkerUnavailable
from gateway.errors import RequestError
from gateway.generation.prompt_query import PromptQuery
from gateway.routing.model_catalog import Activity
from gateway.routing.model_description import capabilities
from gateway.routing.placement.placement import Placement
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.bounds import MAX_COUNT
from protocol.commands import Tokenize
from protocol.errors import ErrorCode
from protocol.events import Tokenized

QUERY_S = 30.0
"""Time for an answer, from any worker."""
ATTEMPTS = 2
"""Workers that are asked at most. A prompt that crashes tokenizers must not crash all of them."""
MAX_PENDING = 8
"""Queries that one worker has at once; a further one is refused."""
LOOKED_AT = 64
"""Workers that are compared for a query, however many there are."""
_AGAIN = frozenset({ErrorCode.OVERLOADED, ErrorCode.DRAINING, ErrorCode.UNAVAILABLE})
"""Refusals after which another worker may answer."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A query that a worker has. It counts until the worker has answered or died, whether or not the client waits."""

    worker: str
    answer: asyncio.Future[Tokenized | None]
    """None when the worker was lost."""
    expiry: asyncio.TimerHandle


class PromptQueries:
    """Owns the queries that workers have. Used on the event loop; the router passes on what the workers report."""

    def __init__(
        self, pool: WorkerPool, placement: Placement, error: Callable[[ErrorCode, str], RequestError], wait_s: float
    ) -> None:
        """A query waits up to `wait_s` seconds for its model to be loaded."""
        self._pool = pool
        self._placement = placement
        self._error = error
        self._wait_s = wait_s
        self._pending: dict[int, _Pending] = {}
        self._counts: Counter[str] = Counter()
        """Those of each worker."""
        self._waiting: Counter[str] = Counter()
        """Queries that wait for a model to be loaded."""
        self._news = anyio.Event()
        self._loop = asyncio.get_running_loop()

    async def ask(self, query: PromptQuery, request_id: str) -> Tokenized:
        """Return the answer of any worker of the model; another one is asked when the first is lost. Raises
        `RequestError`."""
        if self._awaits(query.model):
            await self._loaded(query.model)
        refusal = self._error(ErrorCode.UNAVAILABLE, self._pool.excuse(query.model))
        asked: set[str] = set()
        with anyio.move_on_after(QUERY_S):
            while len(asked) < ATTEMPTS and (handle := self._candidate(query.model, asked)) is not None:
                asked.add(handle.name)
                answer = await self._ask(handle, query, request_id)
                if answer is None:
                    refusal = self._error(ErrorCode.LOST, f"worker {handle.name} was lost while it had the prompt")
                elif answer.code in _AGAIN:
                    refusal = self._error(answer.code, answer.text)
                else:
                    return _checked(answer, query)
            if not asked and self._pool.has_ready(query.model):
                text = f"the workers of model {query.model!r} have all the queries they can hold"
                refusal = self._error(ErrorCode.OVERLOADED, text)
            raise refusal
        raise self._error(ErrorCode.DEADLINE, f"no worker answered within {QUERY_S:g} s")

    def answered(self, event: Tokenized) -> None:
        """A worker has answered. Nobody waits for it any more, maybe."""
        if event.query in self._pending:
            pending = self._take(event.query)
            _settle(pending, event)
            self._note_end(pending)

    def activity(self, model: str, workers: Container[str]) -> Activity:
        """Count the queries of a model: those that these workers have, and those that wait for it to be loaded."""
        live = sum(self._counts[handle.name] for handle in self._pool.of(model) if handle.name in workers)
        return Activity(live, self._waiting[model])

    def model_changed(self) -> None:
        """A model may be served now, or may not come."""
        if self._waiting:
            self._news.set()
            self._news = anyio.Event()

    def _awaits(self, model: str) -> bool:
        """A model may come, and does not serve now."""
        catalog = self._pool.catalog
        return not self._placement.serves(model) and (catalog.loads(model) or catalog.held(model))

    async def described(self, model: str) -> None:
        """Wait until a worker has loaded a model, whose features are known from then on, or none will."""
        await self._wait(model, lambda: capabilities(self._pool, model) is None and self._placement.may_come(model))

    async def _loaded(self, model: str) -> None:
        """Wait until a model is served, or will not be: the query then gets its answer, or the reason."""
        await self._wait(model, lambda: self._awaits(model))

    async def _wait(self, model: str, awaits: Callable[[], bool]) -> None:
        """Wait for a model, which is loaded for it, as long as it `awaits` that."""
        self._waiting[model] += 1
        self._placement.stirred()
        try:
            with anyio.move_on_after(self._wait_s):
                while awaits():
                    await self._news.wait()
        finally:
            self._waiting[model] -= 1
            self._waiting = +self._waiting
            self._placement.stirred()

    def lost(self, worker: str) -> None:
        """A worker was lost, and all that it had."""
        for number, pending in [*self._pending.items()]:
            if pending.worker == worker:
                _settle(self._take(number), None)

    def _expire(self, number: int) -> None:
        """The worker has not answered within `QUERY_S`, and does not count as having the query any more."""
        self._note_end(self._take(number))

    def _take(self, number: int) -> _Pending:
        """Remove a query from those that its worker has."""
        pending = self._pending.pop(number)
        self._counts[pending.worker] -= 1
        if not self._counts[pending.worker]:
            del self._counts[pending.worker]
        return pending

    def _note_end(self, pending: _Pending) -> None:
        if (handle := self._pool.find(pending.worker)) is not None:
            handle.last_used = self._loop.time()
        self._placement.stirred()

    def _candidate(self, model: str, asked: set[str]) -> WorkerHandle | None:
        """The worker with the fewest queries and sequences, of some that may have another one and have the fewest
        sequences; standbys too."""
        now, counts = self._loop.time(), self._counts
        by_load = self._pool.by_load(model)
        able = (each for each in by_load if each.name not in asked and counts[each.name] < MAX_PENDING)
        some = list(itertools.islice(able, LOOKED_AT))
        return min(some, key=lambda each: (each.doubtful(now), counts[each.name], len(each.live)), default=None)

    async def _ask(self, handle: WorkerHandle, query: PromptQuery, request_id: str) -> Tokenized | None:
        number = secrets.randbelow(MAX_COUNT)
        try:
            handle.worker.send_nowait([Tokenize(number, request_id, query.input, query.want, query.special)])
        except WorkerUnavailable:
            return None
        expiry = self._loop.call_later(QUERY_S, self._expire, number)
        pending = self._pending[number] = _Pending(handle.name, self._loop.create_future(), expiry)
        self._counts[handle.name] += 1
        return await pending.answer


def _settle(pending: _Pending, answer: Tokenized | None) -> None:
    pending.expiry.cancel()
    if not pending.answer.done():
        pending.answer.set_result(answer)


def _checked(answer: Tokenized, query: PromptQuery) -> Tokenized:
    if answer.code is not None:
        raise query.fields.error(answer.code, answer.text, answer.field)
    return answer
