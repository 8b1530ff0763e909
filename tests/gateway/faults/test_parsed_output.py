"""Workers that are lost within a tool call or within reasoning: the client puts together what it would have had."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from actors.supervision.output_check import OutputCheck
from gateway.generation.delta import OutputDelta, ReasoningDelta, TokenCounts
from gateway.generation.request import GenerationRequest, OutputOptions, SequenceRequest
from gateway.openai.answer import OpenAIAnswer
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead
from protocol.commands import Command
from protocol.events import Event, Finished, Step
from protocol.request import ChatInput, Limits, Message, Sampling, ToolChoice
from tests.gateway.harness.engines import EngineWorker
from tests.gateway.harness.typed_answer import TypingRunner
from tests.gateway.harness.virtual import BACKEND
from tests.workers.output_formats.answers import ANSWERS
from tests.workers.output_formats.parsed import TOOLS
from workers.output_formats.formats.catalog import REASONING_FORMATS, TOOL_FORMATS
from workers.output_formats.formats.choice import ChosenFormats
from workers.text.byte_tokenizer import ByteTokenizer

pytestmark = pytest.mark.anyio

FORMATS = ChosenFormats(REASONING_FORMATS["think"], TOOL_FORMATS["hermes"])
MESSAGES = (Message("user", "Weather?"),)
START = len(ByteTokenizer().chat.render([{"role": "user", "content": "Weather?"}]))
ANSWER = (
    '<think>Grüezi.</think>\nI look.\n<tool_call>{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}'
    '</tool_call>\n<tool_call>{"arguments": {"a": 1}, "name": "time"}</tool_call>'
)
WHOLE = (
    "Grüezi.",
    "I look.",
    [("weather", '{"city": "Zürich", "days": [1, 2]}'), ("time", '{"a": 1}')],
    "tool_calls",
)


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class ToolTokenizer(ByteTokenizer):
    """Takes tools, which its template does not write."""

    def __init__(self) -> None:
        super().__init__()
        self.chat.takes_tools = True


class CheckedWorker(EngineWorker):
    """A worker whose frames are held to what was asked for, as a real one's are."""

    def __init__(self, name: str, answer: str, formats: ChosenFormats) -> None:
        self._check = OutputCheck()
        super().__init__(name, runner=lambda: TypingRunner(answer, START), formats=formats, tokenizer=ToolTokenizer)
        assert self.status.hello is not None
        self._check.check(self.status.hello, 0.0)

    def send_nowait(self, commands: Sequence[Command]) -> None:
        super().send_nowait(commands)
        self._check.sent(commands, 0.0)

    def say(self, event: Event, incarnation: int | None = None) -> None:
        if isinstance(event, Step | Finished):
            self._check.check(event, 0.0)
        super().say(event, incarnation)


class Client:
    """Two workers, one request, and a client that puts its chunks together."""

    def __init__(
        self, answer: str = ANSWER, *, formats: ChosenFormats = FORMATS, with_tokens: bool = False, **chat: Any
    ) -> None:
        settings = GatewaySettings()
        self.router = Router(settings)
        self.workers = [CheckedWorker(name, answer, formats) for name in "ab"]
        for worker in self.workers:
            worker.join(self.router)
        limits = Limits(max_tokens=400, reasoning_tokens=chat.pop("reasoning_tokens", None))
        source = ChatInput(MESSAGES, **({"parse_tools": True, "parse_reasoning": True} | chat))
        output = OutputOptions(stream=True, with_tokens=with_tokens)
        request = GenerationRequest("tiny", (SequenceRequest(source, Sampling(), limits),), output)
        self.group: RequestGroup = self.router.admission.open(request, "r")
        self.deltas: list[OutputDelta] = []

    def step(self, *, take: bool = True) -> None:
        for worker in self.workers:
            if not worker.idle:
                worker.step()
        if take:
            self.take()

    def take(self) -> None:
        self.deltas += self.group.take()
        while self.group.unread:
            self.deltas += self.group.take()

    def run(self, *, take_each: int = 1) -> tuple[Any, ...]:
        for count in range(1000):
            if self.group.ended:
                break
            self.step(take=count % take_each == 0)
        self.take()
        return self.assembled()

    def lose(self) -> None:
        """The worker that computes the answer dies."""
        next(worker for worker in self.workers if not worker.engine.idle).die()

    def assembled(self) -> tuple[Any, ...]:
        """Return what an OpenAI client has at the end: the ids of calls are random, and each call has one."""
        head = AnswerHead("chatcmpl-1", 0, "tiny", "")
        (choice,) = json.loads(
            b"".join(OpenAIAnswer(chat=True).whole(head, self.deltas, TokenCounts(0, 0, 0), continued=False))
        )["choices"]
        message = choice["message"]
        calls = message.get("tool_calls", [])
        assert all(len(call["id"]) == len("call_") + 24 for call in calls)
        functions = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        return message.get("reasoning_content", ""), message["content"] or "", functions, choice["finish_reason"]


async def test_an_undisturbed_answer() -> None:
    assert Client().run() == WHOLE


@pytest.mark.parametrize("take_each", [2, 7, 1000])
async def test_what_came_since_the_last_take_is_one_delta_for_each_run_of_one_kind(take_each: int) -> None:
    client = Client()
    assert client.run(take_each=take_each) == WHOLE
    if take_each == 1000:
        assert [type(delta).__name__ for delta in client.deltas] == ["ReasoningDelta", "TextDelta"] + [
            "ToolCallDelta"
        ] * 2


@pytest.mark.parametrize("at", range(0, len(ANSWER.encode()), 3))
async def test_a_death_anywhere_changes_nothing(at: int) -> None:
    client = Client()
    for _ in range(at):
        client.step(take=at % 2 == 0)
    client.lose()
    assert client.run() == WHOLE


@pytest.mark.parametrize(
    "name",
    ["command", "deepseek_v4", "glm4, two calls", "glm47", "seed_oss", "apertus", "jamba", "llama4_json", "xlam"],
)
async def test_a_death_within_calls_of_a_format_changes_nothing(name: str) -> None:
    answer = ANSWERS[name]
    reasoning = REASONING_FORMATS[answer.reasoning_format] if answer.reasoning_format else None
    options: dict[str, Any] = {
        "formats": ChosenFormats(reasoning, TOOL_FORMATS[answer.tools]),
        "tools_json": json.dumps(TOOLS),
    }
    written = answer.written if not answer.prompt else "<think>" + answer.written
    whole = Client(written, **options).run()
    assert [(name, json.loads(arguments)) for name, arguments in whole[2]] == list(answer.calls)
    assert (whole[0], whole[3]) == (answer.reasoning, "tool_calls")
    for at in range(1, len(written.encode()), 11):
        client = Client(written, **options)
        for _ in range(at):
            client.step()
        client.lose()
        assert client.run() == whole, at


async def test_two_deaths_change_nothing() -> None:
    inside_reasoning, inside_call = 10, ANSWER.index("Zü")
    client = Client()
    for _ in range(inside_reasoning):
        client.step()
    client.lose()
    client.workers[0].come_back()
    for _ in range(inside_call - inside_reasoning):
        client.step()
    client.lose()
    assert client.run() == WHOLE


@pytest.mark.parametrize("at", range(0, 60, 7))
async def test_a_death_does_not_move_the_bound_on_reasoning(at: int) -> None:
    answer = "<think>" + "x" * 30 + ANSWER.partition("</think>")[2]
    whole = Client(answer, reasoning_tokens=12).run()
    assert whole[0] == "x" * 12, "the end of the reasoning was forced"
    client = Client(answer, reasoning_tokens=12)
    for _ in range(at):
        client.step()
    client.lose()
    assert client.run() == whole


async def test_without_parsing_all_of_it_is_text() -> None:
    client = Client(parse_tools=False, parse_reasoning=False)
    assert client.run() == ("", ANSWER, [], "stop")


async def test_calls_are_text_if_the_choice_is_none() -> None:
    reasoning, text, calls, reason = Client(tool_choice=ToolChoice("none")).run()
    assert (reasoning, calls, reason) == ("Grüezi.", [], "stop")
    assert text == ANSWER.partition("</think>\n")[2]


async def test_without_parallel_calls_the_worker_stops_after_the_first() -> None:
    client = Client(tool_choice=ToolChoice(parallel=False))
    assert client.run() == (*WHOLE[:2], WHOLE[2][:1], "tool_calls")
    await anyio.lowlevel.checkpoint()
    assert all(worker.idle for worker in client.workers)


async def test_tokens_go_with_the_deltas() -> None:
    client = Client(with_tokens=True)
    client.run(take_each=5)
    tokens = [token for delta in client.deltas for token in delta.tokens]
    assert bytes(tokens[:-1]).decode() == ANSWER
    first = next(delta for delta in client.deltas if isinstance(delta, ReasoningDelta))
    before = client.deltas[: client.deltas.index(first)]
    assert bytes(token for delta in [*before, first] for token in delta.tokens).startswith(b"<think>G")
