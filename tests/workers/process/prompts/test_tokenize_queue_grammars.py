"""Tokenize queue: a grammar is compiled on a second thread, and later requests do not wait for it."""

import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec import structs

from protocol.bounds import MAX_OVERTAKEN
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Failed, Finished, Gauges, Tokenized
from protocol.request import Grammar
from tests.workers.process.harness.gateway_peer import submit
from workers.engine.logits_processors import AllowedTokens
from workers.engine.request import EngineRequest
from workers.engine.step_result import StepResult, Token
from workers.grammar.refusal import GrammarRefused
from workers.process.output_processor import EngineOutput, OutputProcessor, SubmitResult
from workers.process.prompts.tokenize_queue import GRAMMAR_WAIT_S, MAX_INLINE_COST, TokenizeQueue
from workers.text.byte_tokenizer import ByteTokenizer

pytestmark = pytest.mark.anyio


class SlowCompiler:
    """Compiler that waits on its thread until the test releases it. Regular expressions with "bad" are refused."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.compiled: list[str] = []
        self.on_main_thread = 0

    def cached(self, grammar: Grammar) -> bool:
        return grammar.source in self.compiled

    def matcher(self, grammar: Grammar, *, ignore_eos: bool = False, client: str | None = None) -> AllowedTokens:
        if threading.current_thread() is threading.main_thread():
            self.on_main_thread += 1
            assert self.cached(grammar)
        elif not self.cached(grammar):
            self.begun.release()
            self.go.acquire()
            if "bad" in grammar.source:
                raise GrammarRefused("it is bad", "properties.a")
            self.compiled.append(grammar.source)
        return AllowedTokens([1], 257)


class Desk:
    """Tokenize queue over an output processor, with the admissions of its requests."""

    def __init__(self) -> None:
        self.compiler = SlowCompiler()
        compiler: Any = self.compiler
        self.now = 0.0
        self.processor = OutputProcessor(ByteTokenizer(), max_live=64, clock=lambda: self.now, grammars=compiler)
        self.queue = TokenizeQueue(self.processor, lambda: self.now, self._admitted, self._answered)
        self.results: dict[int, SubmitResult] = {}
        self._news = anyio.Event()

    def _answered(self, answer: Tokenized) -> None:
        raise AssertionError(f"nothing was asked: {answer}")

    def _admitted(self, result: SubmitResult) -> None:
        ended: EngineRequest | Finished | Failed | None = result.request or result.answer
        assert ended is not None
        self.results[ended.stream] = result
        self._news.set()

    async def send(self, stream: int, source: str = "", **limits: Any) -> None:
        """Send a request, with a grammar if it has a source, and let the queue look at it."""
        result = self.queue.submit(constrained(stream, source, **limits) if source else submit(stream, **limits))
        if result is not None:
            self._admitted(result)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()

    async def until(self, *streams: int) -> None:
        while not self.results.keys() >= {*streams}:
            self._news = anyio.Event()
            await self._news.wait()

    async def begun(self) -> None:
        await anyio.to_thread.run_sync(self.compiler.begun.acquire)

    def output(self, *streams: int) -> None:
        """The engine generates a token of each of these."""
        step = StepResult(tuple(Token(stream, 97) for stream in streams), (), (), False)
        self.processor.process(EngineOutput(step, (), (), Gauges()))

    @property
    def reached(self) -> int:
        return self.processor.with_reached(Gauges()).reached


def constrained(stream: int, source: str, **limits: Any) -> Submit:
    return structs.replace(submit(stream, **limits), grammar=Grammar("regex", source, "guided_regex"))


@pytest.fixture
async def desk() -> Any:
    desk = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(desk.queue.run)
        yield desk
        desk.compiler.go.release(100)
        group.cancel_scope.cancel()


async def test_later_requests_do_not_wait_for_a_grammar(desk: Desk) -> None:
    await desk.send(1)
    await desk.send(2, "slow")
    await desk.begun()
    await desk.send(3)
    assert [*desk.results] == [1, 3]
    assert desk.queue.is_live(2)
    assert desk.queue.live == 3
    assert desk.reached == 1, "a death may still be attributed to the grammar"
    desk.compiler.go.release()
    await desk.until(2)
    request = desk.results[2].request
    assert request is not None
    assert isinstance(request.constraint, AllowedTokens)
    assert desk.reached == 3


async def test_a_known_grammar_keeps_its_turn(desk: Desk) -> None:
    await desk.send(1, "a")
    desk.compiler.go.release()
    await desk.until(1)
    await desk.send(2, "a")
    await desk.until(2)
    assert desk.compiler.on_main_thread == 1
    assert desk.reached == 2


async def test_as_many_are_overtaken_as_the_gateway_expects(desk: Desk) -> None:
    """Those that were overtaken count until they have output, because they may wait for a slot behind others."""
    for stream in range(1, MAX_OVERTAKEN + 2):
        await desk.send(stream, f"g{stream}")
    last = MAX_OVERTAKEN + 1
    await desk.begun()
    await desk.send(last + 1)
    assert desk.results == {}, "one more than may be overtaken is in front of it"
    desk.compiler.go.release(MAX_OVERTAKEN)
    await desk.until(*range(1, last))
    assert last + 1 not in desk.results
    desk.compiler.go.release()
    await desk.until(last, last + 1)
    assert [*desk.results][-2:] == [last, last + 1], "in order"
    await desk.send(last + 2, "another")
    await desk.send(last + 3)
    assert last + 3 not in desk.results, "none of the others has output yet"
    desk.compiler.go.release()
    await desk.until(last + 3)
    desk.output(*range(1, last))
    await desk.send(last + 4, "and another")
    await desk.send(last + 5)
    assert last + 5 in desk.results


async def test_a_request_cancelled_while_its_grammar_is_compiled_is_not_admitted(desk: Desk) -> None:
    await desk.send(1, "slow")
    await desk.begun()
    await desk.send(2)
    ended = desk.queue.cancel(1)
    assert isinstance(ended, Finished)
    assert ended.reason == "cancelled"
    assert desk.queue.cancel(1) is None, "once"
    assert desk.reached == 2
    desk.compiler.go.release()
    await desk.send(3, "slow")
    await desk.until(3)
    assert 1 not in desk.results


async def test_many_new_grammars_delay_other_requests_for_a_bounded_time(desk: Desk) -> None:
    flood = 2 * MAX_OVERTAKEN
    for stream in range(1, flood + 1):
        await desk.send(stream, f"g{stream}")
    await desk.send(flood + 1)
    desk.now = GRAMMAR_WAIT_S + 0.1
    desk.compiler.go.release(MAX_OVERTAKEN + 1)  # those that are overtaken, and the one that is compiled in its turn
    await desk.until(flood + 1)
    refused = [desk.results[stream].answer for stream in range(MAX_OVERTAKEN + 2, flood + 1)]
    assert [answer.code for answer in refused if isinstance(answer, Failed)] == [ErrorCode.OVERLOADED] * len(refused)
    assert len(desk.compiler.compiled) == MAX_OVERTAKEN + 1
    assert desk.results[flood + 1].request is not None


async def test_a_refused_grammar_names_field_and_path(desk: Desk) -> None:
    await desk.send(1, "bad")
    desk.compiler.go.release()
    await desk.until(1)
    answer = desk.results[1].answer
    assert answer == Failed(1, ErrorCode.INVALID, "`guided_regex.properties.a`: it is bad", "guided_regex")
    assert desk.queue.live == 0
    assert desk.reached == 1


async def test_requests_without_a_grammar_yet_fail_when_the_worker_leaves(desk: Desk) -> None:
    await desk.send(1, "slow")
    await desk.begun()
    await desk.send(2)
    failed = desk.queue.fail_all(ErrorCode.DRAINING, "bye")
    assert {each.stream for each in failed} == {1, 2}
    desk.compiler.go.release()
    await desk.send(3, "slow")
    await desk.until(3)
    assert 1 not in desk.results


async def test_a_long_resumption_with_a_known_grammar_does_not_wait_for_another_grammar(desk: Desk) -> None:
    await desk.send(1, "a")
    desk.compiler.go.release()
    await desk.until(1)
    await desk.send(2, "slow")
    await desk.begun()
    await desk.send(3, "a", resume=(1,) * MAX_INLINE_COST)
    await desk.send(4)
    with anyio.fail_after(10):
        await desk.until(3, 4)
    assert not desk.results.keys() & {2}
    desk.compiler.go.release()
    await desk.until(2)
