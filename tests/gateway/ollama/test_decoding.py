"""Bodies of Ollama's API as requests, and those that are refused: every refusal names its field."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.generation.request import SequenceRequest
from gateway.ollama.decoding import OllamaDecoder
from gateway.ollama.errors import ERRORS
from gateway.ollama.schema import ModelOptions, OllamaChatBody, OllamaGenerateBody
from gateway.ollama.unsupported import OPTIONS
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnsweredAtOnce, Decoded
from protocol.request import ChatInput, Grammar, InfillInput, Message, Sampling, TemplateOptions, TextInput, ToolCall
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.ollama.scenarios import CHAT, GENERATE

pytestmark = pytest.mark.anyio
DOCS = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
SECTION = DOCS.partition("## Ollama's API")[2].partition("\n## ")[0]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture
async def decoder() -> OllamaDecoder:
    router = Router(GatewaySettings())
    FakeWorker("a", context=128).join(router)
    return OllamaDecoder(router, GatewaySettings())


def decoded(made: Decoded | AnsweredAtOnce) -> Decoded:
    assert isinstance(made, Decoded)
    return made


def chat(decoder: OllamaDecoder, **fields: Any) -> SequenceRequest:
    return decoded(decoder.chat(json.dumps(CHAT | fields).encode())).request.sequences[0]


def chat_of(decoder: OllamaDecoder, **fields: Any) -> ChatInput:
    made = chat(decoder, **fields).input
    assert isinstance(made, ChatInput)
    return made


def generate(decoder: OllamaDecoder, **fields: Any) -> SequenceRequest:
    return decoded(decoder.generate(json.dumps(GENERATE | fields).encode())).request.sequences[0]


async def test_the_smallest_bodies(decoder: OllamaDecoder) -> None:
    assert decoded(decoder.chat(json.dumps(CHAT).encode())).request.output.stream
    assert chat_of(decoder).messages == (Message("user", "hi"),)
    assert chat(decoder).limits.max_tokens is None
    assert chat(decoder).unset == ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    made = generate(decoder, system="be brief").input
    assert isinstance(made, ChatInput)
    assert made.messages == (Message("system", "be brief"), Message("user", "hi"))
    assert generate(decoder, raw=True).input == TextInput("hi")
    assert generate(decoder, suffix="!").input == InfillInput("hi", "!")
    assert isinstance(generate(decoder, suffix="").input, ChatInput)


async def test_a_name_may_have_the_tag_that_clients_add(decoder: OllamaDecoder) -> None:
    made = decoded(decoder.chat(json.dumps(CHAT | {"model": "tiny:latest"}).encode()))
    assert made.request.model == "tiny"
    assert b'"model":"tiny:latest"' in made.renderer.keep_alive
    unknown = decoded(decoder.chat(json.dumps(CHAT | {"model": "huge:latest"}).encode()))
    assert unknown.request.model == "huge:latest"


async def test_options(decoder: OllamaDecoder) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "seed": 7,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "num_predict": 9,
        "num_ctx": (1 << 31) - 1,
        "stop": ["a", ""],
        "num_gpu": 99,
        "mirostat": 0,
        "repeat_last_n": -1,
        "speculate": False,
        "sparse_prefill": True,
        "sparse_prefill_keep": 0.5,
    }
    made = chat(decoder, options=options, keep_alive="5m")
    assert made.sampling == Sampling(
        0.5, 3, 0.9, 0.1, 7, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5, typical_p=0.8
    )
    assert (made.limits.max_tokens, made.limits.stop, made.unset) == (9, ("a",), ())
    assert not made.limits.speculate
    assert (made.limits.sparse_prefill, made.limits.sparse_keep) == (True, 0.5)
    assert chat(decoder, options={"speculate": None}).limits.speculate
    assert chat(decoder, options={"typical_p": 0}).sampling.typical_p == 1
    assert chat(decoder, options={"num_predict": -1}).limits.max_tokens is None
    assert chat(decoder, options={"stop": "x"}).limits.stop == ("x",)


@pytest.mark.parametrize("tools", [[], [TOOL]])
async def test_a_stream_that_may_have_calls_counts_to_its_end(decoder: OllamaDecoder, tools: Any) -> None:
    """Before: the parts of a call, which is sent whole, counted as if the client had taken them."""
    assert decoded(decoder.chat(json.dumps(CHAT | {"tools": tools}).encode())).request.output.kept == bool(tools)


async def test_formats(decoder: OllamaDecoder) -> None:
    assert chat(decoder, format="json").grammar == Grammar("json_object", field="format")
    assert chat(decoder, format={"type": "object"}).grammar == Grammar("json_schema", '{"type":"object"}', "format")
    assert generate(decoder, format="").grammar is None


@pytest.mark.parametrize(
    ("think", "options"),
    [
        (None, TemplateOptions()),
        (True, TemplateOptions(True, True)),
        (False, TemplateOptions(False, False)),
        ("low", TemplateOptions(True, True, None, "low")),
        ("max", TemplateOptions(True, True, None, "xhigh")),
    ],
)
async def test_thinking(decoder: OllamaDecoder, think: Any, options: TemplateOptions) -> None:
    assert chat_of(decoder, think=think).options == options


async def test_a_conversation_with_tools(decoder: OllamaDecoder) -> None:
    calls = [{"function": {"name": name, "arguments": {"city": "Oslo"}}} for name in ("weather", "clock")]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_name": "clock"},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "nothing"},
        {"role": "assistant", "tool_calls": [calls[0] | {"id": "x"}]},
        {"role": "tool", "content": "snow", "tool_call_id": "x"},
    ]
    made = chat_of(decoder, messages=messages, tools=[TOOL])
    arguments = '{"city":"Oslo"}'
    assert made.messages == (
        Message("user", "hi"),
        Message(
            "assistant",
            "",
            tool_calls=(ToolCall("call_1_0", "weather", arguments), ToolCall("call_1_1", "clock", arguments)),
            reasoning="hm",
        ),
        Message("tool", "noon", tool_call_id="call_1_1"),
        Message("tool", "rain", tool_call_id="call_1_0"),
        Message("tool", "nothing"),
        Message("assistant", "", tool_calls=(ToolCall("x", "weather", arguments),)),
        Message("tool", "snow", tool_call_id="x"),
    )
    assert (made.parse_tools, made.parse_reasoning) == (True, True)
    assert json.loads(made.tools_json)[0]["function"]["name"] == "weather"


CHAT_BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": [], "logprobs": True}, "logprobs"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "images": [""]}]}, "messages[0].images[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "thinking": "x"}]}, "messages[0].thinking"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    ({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"format": "xml"}, "format"),
    ({"format": 7}, "format"),
    ({"think": "some"}, "think"),
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"num_predict": 0}}, "options.num_predict"),
    ({"options": {"num_ctx": 1 << 31}}, "options.num_ctx"),
    ({"options": {"mirostat": 2}}, "options.mirostat"),
    ({"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
    ({"options": {"speed": 1}}, "options.speed"),
    ({"logprobs": True}, "logprobs"),
    ({"template": "x"}, "template"),
    ({"keep_alive": []}, "keep_alive"),
]
GENERATE_BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "", "suffix": "x"}, "suffix"),
    ({"suffix": "x", "raw": True}, "raw"),
    ({"suffix": "x", "system": "x"}, "system"),
    ({"suffix": "x", "images": ["aGk="]}, "images"),
    ({"suffix": "x", "think": True}, "think"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"context": [1, 2]}, "context"),
    ({"images": ["aGk="], "raw": True}, "images"),
    ({"raw": True, "system": "x"}, "system"),
    ({"messages": []}, "messages"),
]


@pytest.mark.parametrize(("fields", "at"), CHAT_BAD, ids=[at for _, at in CHAT_BAD])
async def test_a_chat_that_is_refused(decoder: OllamaDecoder, fields: dict[str, Any], at: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(decoder, **fields)
    assert (ERRORS.status(caught.value), caught.value.field) == (400, at)
    assert f"`{at}`" in caught.value.text


@pytest.mark.parametrize(("fields", "at"), GENERATE_BAD, ids=[at for _, at in GENERATE_BAD])
async def test_a_prompt_that_is_refused(decoder: OllamaDecoder, fields: dict[str, Any], at: str) -> None:
    with pytest.raises(RequestError) as caught:
        generate(decoder, **fields)
    assert (ERRORS.status(caught.value), caught.value.field) == (400, at)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(["role", "content", "images", "tool_calls", "thinking", "tool_name", "format", "type"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(st.dictionaries(_NAMES, _JSON | st.sampled_from(["user", "tool"]), max_size=4), max_size=3),
    form=_JSON,
    tools=_JSON | st.lists(_JSON, max_size=2),
)
async def test_no_body_is_an_error_of_the_server(decoder: OllamaDecoder, messages: Any, form: Any, tools: Any) -> None:
    status = 200
    try:
        decoder.chat(json.dumps(CHAT | {"messages": messages, "format": form, "tools": tools}).encode())
    except RequestError as error:
        status = ERRORS.status(error)
    assert status in (200, 400)


FIELDS = {
    *OllamaChatBody.__struct_fields__,
    *OllamaGenerateBody.__struct_fields__,
    *ModelOptions.__struct_fields__,
    *OPTIONS,
}


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_every_field_is_described(field: str) -> None:
    assert f"`{field}`" in SECTION
