"""The client of a model in this process: what it asks of the model, and the pieces of parsed output."""

from collections.abc import Generator
from typing import Any, cast

from cli.client.local import LocalClient
from cli.client.model_client import ModelRequest, Summary
from cli.client.reply_parts import ReplyParts
from gateway.generation.delta import ReasoningDelta, ToolCallDelta
from protocol.events import Delta, Finished, ReasoningSegment, TextSegment, ToolCallSegment, Usage
from protocol.request import ChatInput, Grammar, Limits, Message, Sampling, TextInput
from workers.local_model import LocalModel


class SegmentModel:
    """A local model whose output is parsed."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Grammar | None]] = []

    def stream(
        self, prompt: Any, sampling: Sampling, limits: Limits, *, grammar: Grammar | None
    ) -> Generator[Delta | Finished, None, None]:
        self.asked.append((prompt, grammar))
        yield Delta(1, (), segments=(ReasoningSegment("Two cities."), TextSegment("Wait. "), ToolCallSegment(0, "now")))
        yield Delta(1, (), segments=(ToolCallSegment(0, "", '{"in": "Rome"}'), ToolCallSegment(1, "now", "{}")))
        yield Finished(1, "tool_calls", Usage(3, 9))


def test_parsed_output_is_text_reasoning_and_calls_with_ids() -> None:
    model, parts = SegmentModel(), ReplyParts()
    client = LocalClient("tiny", cast(LocalModel, model))
    grammar = Grammar("json_schema", "{}", "--json-schema")
    messages = (Message("user", "Hi"),)
    *pieces, summary = client.stream(ModelRequest(Sampling(), Limits(), "", messages, grammar, "[{}]"))
    assert model.asked == [(ChatInput(messages, "[{}]", parse_tools=True, parse_reasoning=True), grammar)]
    assert isinstance(summary, Summary)
    assert summary.reason == "tool_calls"
    for piece in pieces:
        assert isinstance(piece, str | ReasoningDelta | ToolCallDelta)
        parts.add(piece)
    assert (parts.reasoning, parts.text) == ("Two cities.", "Wait. ")
    first, second = parts.calls()
    assert [(call.name, call.arguments) for call in (first, second)] == [("now", '{"in": "Rome"}'), ("now", "{}")]
    assert first.id.startswith("call_")
    assert len({first.id, second.id}) == 2


def test_without_tools_calls_are_text_and_a_plain_prompt_has_a_grammar_too() -> None:
    model = SegmentModel()
    client = LocalClient("tiny", cast(LocalModel, model))
    grammar = Grammar("json_schema", "{}", "--json-schema")
    list(client.stream(ModelRequest(Sampling(), Limits(), messages=(Message("user", "Hi"),))))
    list(client.stream(ModelRequest(Sampling(), Limits(), "One", grammar=grammar)))
    (chat, none), (plain, given) = model.asked
    assert (chat.parse_tools, chat.parse_reasoning, none) == (False, True, None)
    assert (plain, given) == (TextInput("One"), grammar)
