"""Bodies at the door: every refusal names its field, and every bound holds at its edge."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.options import OPTIONS
from gateway.requests import (
    COMPLETION_MAX_TOKENS,
    MAX_LABEL,
    MAX_METADATA,
    MAX_PARTS,
    ChatBody,
    ChatMessage,
    CompletionBody,
    Plan,
    RequestDecoder,
)
from gateway.settings import GatewaySettings
from protocol.bounds import (
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
)
from protocol.request import Bias, Limits, Message, Sampling

COMPLETION = {"model": "tiny", "prompt": "hi"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
DECODER = RequestDecoder(GatewaySettings())


def completion(**fields: Any) -> Plan:
    return DECODER.completion(json.dumps(COMPLETION | fields).encode())


def chat(**fields: Any) -> Plan:
    return DECODER.chat(json.dumps(CHAT | fields).encode())


def refusal(call: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(**fields)
    return caught.value


def message(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"} | fields]


BAD: list[tuple[str, Any, str]] = [
    ("model", "", "model"),
    ("model", 7, "model"),
    ("model", "m" * 129, "model"),
    ("n", 0, "n"),
    ("n", 65, "n"),
    ("n", 10**30, "n"),
    ("n", 1.5, "n"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", MAX_TOKENS + 1, "max_tokens"),
    ("temperature", -0.1, "temperature"),
    ("temperature", MAX_TEMPERATURE + 1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("top_k", -1, "top_k"),
    ("top_k", MAX_TOP_K + 1, "top_k"),
    ("min_p", -0.1, "min_p"),
    ("min_p", 1.1, "min_p"),
    ("seed", -1, "seed"),
    ("seed", MAX_SEED + 1, "seed"),
    ("stop", "", "stop"),
    ("stop", [""], "stop[0]"),
    ("stop", ["x"] * (MAX_STOPS + 1), "stop"),
    ("stop", "x" * (MAX_STOP_CHARS + 1), "stop"),
    ("stop", 7, "stop"),
    ("stream", "yes", "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("stream_options", {"include_obfuscation": True}, "stream_options.include_obfuscation"),
    ("stream_options", {"other": True}, "stream_options.other"),
    ("ignore_eos", 1, "ignore_eos"),
    ("return_token_ids", "x", "return_token_ids"),
    ("user", "u" * (MAX_LABEL + 1), "user"),
    ("cache_salt", "s" * (MAX_NAME + 1), "cache_salt"),
    ("metadata", {str(i): "" for i in range(MAX_METADATA + 1)}, "metadata"),
    ("no_such_field", 1, "no_such_field"),
    ("chat_template_kwargs", {}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("field", "value", "param"), BAD, ids=[f"{f}={str(v)[:20]}" for f, v, _ in BAD])
@pytest.mark.parametrize("call", [completion, chat], ids=["completion", "chat"])
def test_a_bad_field_is_named(call: Any, field: str, value: Any, param: str) -> None:
    error = refusal(call, **{field: value})
    assert error.status == 400
    assert error.param == param
    assert field in error.message
    assert json.loads(error.body())["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        pytest.param(None, "prompt", id="null"),
        pytest.param(7, "prompt", id="number"),
        pytest.param([], "prompt", id="empty list"),
        pytest.param([[]], "prompt[0]", id="empty tokens"),
        pytest.param([1, "a"], "prompt", id="mixed"),
        pytest.param(["a", [1]], "prompt", id="mixed with a list"),
        pytest.param([1, -1], "prompt[1]", id="negative id"),
        pytest.param([2**31], "prompt[0]", id="id over 31 bits"),
        pytest.param([1.5], "prompt[0]", id="fraction"),
        pytest.param([[["a"]]], "prompt[0][0]", id="too deep"),
        pytest.param(["a"] * 65, "prompt", id="too many"),
    ],
)
def test_a_bad_prompt_is_named(prompt: Any, param: str) -> None:
    assert refusal(completion, prompt=prompt).param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        pytest.param([], "messages", id="none"),
        pytest.param("hi", "messages", id="string"),
        pytest.param(message() * (MAX_MESSAGES + 1), "messages", id="too many"),
        pytest.param([{"role": "user"}], "messages[0].content", id="no content"),
        pytest.param([{"content": "x"}], "messages[0].role", id="no role"),
        pytest.param(message(role="tool"), "messages[0].role", id="tool role"),
        pytest.param(message(content=None), "messages[0].content", id="null content"),
        pytest.param(message(content=[]), "messages[0].content", id="no parts"),
        pytest.param(message(content=[{"type": "text"}]), "messages[0].content[0].text", id="part without text"),
        pytest.param(
            message(content=[{"type": "image_url", "image_url": {"url": "http://x"}}]),
            "messages[0].content[0].type",
            id="image",
        ),
        pytest.param(
            message(content=[{"type": "text", "text": ""}] * (MAX_PARTS + 1)), "messages[0].content", id="many parts"
        ),
        pytest.param(message() + message(name="bob"), "messages[1].name", id="name"),
        pytest.param(message(tool_calls=[{}]), "messages[0].tool_calls", id="tool calls"),
        pytest.param(message(other=1), "messages[0].other", id="unknown field"),
    ],
)
def test_bad_messages_are_named(messages: Any, param: str) -> None:
    assert refusal(chat, messages=messages).param == param


@pytest.mark.parametrize(
    ("call", "fields", "sentence"),
    [
        (
            chat,
            {"messages": message(role="king")},
            "`messages[0].role` takes system, developer, user or assistant, not 'king'",
        ),
        (
            chat,
            {"messages": message(content=[{"type": "image_url", "text": ""}])},
            "`messages[0].content[0].type` takes text, the only kind of content here, not 'image_url'",
        ),
        (completion, {"logprobs": True}, "`logprobs` takes a number from 0 to 20, not True"),
        (
            completion,
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "`stream_options.include_obfuscation` takes false, not True",
        ),
        (chat, {"prompt": "x"}, "`prompt` is not a parameter that Baton knows here: it belongs to /v1/completions"),
        (
            completion,
            {"messages": message()},
            "`messages` is not a parameter that Baton knows here: it belongs to /v1/chat/completions",
        ),
        (completion, {"n": 65}, "prompts times n, 1 x 65, are 65 sequences; one request may have 64"),
    ],
)
def test_what_would_have_been_right_is_told(call: Any, fields: dict[str, Any], sentence: str) -> None:
    assert refusal(call, **fields).message == sentence


def test_unknown_and_missing_fields_are_told_in_a_sentence() -> None:
    assert refusal(completion, foo=1).message == "`foo` is not a parameter that Baton knows"
    assert refusal(chat, messages=message(other=1)).message == "`messages[0].other` is not a parameter that Baton knows"
    with pytest.raises(ApiError) as caught:
        DECODER.completion(b'{"prompt": "hi"}')
    assert (caught.value.message, caught.value.param) == ("`model` is required", "model")


def _options(body: type[Any]) -> list[str]:
    return [name for name in body.__struct_fields__ if name in OPTIONS]


OFFERED = [(completion, name) for name in _options(CompletionBody)] + [(chat, name) for name in _options(ChatBody)]


@pytest.mark.parametrize(("call", "name"), OFFERED, ids=[f"{call.__name__}-{name}" for call, name in OFFERED])
def test_an_option_that_baton_lacks_is_refused_only_when_it_asks_for_something(call: Any, name: str) -> None:
    for harmless in (None, *OPTIONS[name]):
        call(**{name: harmless})
    for asking in (0.5, True, "x", ["x"], {"type": "x"}):
        if asking in OPTIONS[name]:
            continue
        error = refusal(call, **{name: asking})
        assert (error.status, error.param, error.code) == (400, name, "unsupported")


def test_every_option_is_offered_somewhere() -> None:
    offered = {name for body in (CompletionBody, ChatBody, ChatMessage) for name in _options(body)}
    assert offered == set(OPTIONS)


@pytest.mark.parametrize(
    ("call", "fields", "asked"),
    [
        (completion, {}, None),
        (completion, {"logprobs": False}, None),
        (completion, {"logprobs": 0}, 0),
        (completion, {"logprobs": MAX_TOP_LOGPROBS}, MAX_TOP_LOGPROBS),
        (chat, {"logprobs": False, "top_logprobs": 0}, None),
        (chat, {"logprobs": True}, 0),
        (chat, {"logprobs": True, "top_logprobs": MAX_TOP_LOGPROBS}, MAX_TOP_LOGPROBS),
    ],
)
def test_log_probabilities_are_asked_for_in_the_manner_of_the_endpoint(
    call: Any, fields: dict[str, Any], asked: int | None
) -> None:
    plan = call(**fields)
    assert plan.choices[0].sampling.logprobs == asked
    assert plan.by_token == (asked is not None)


@pytest.mark.parametrize(
    ("call", "fields", "param"),
    [
        (completion, {"logprobs": MAX_TOP_LOGPROBS + 1}, "logprobs"),
        (completion, {"logprobs": True}, "logprobs"),
        (chat, {"logprobs": 1}, "logprobs"),
        (chat, {"logprobs": True, "top_logprobs": MAX_TOP_LOGPROBS + 1}, "top_logprobs"),
        (chat, {"top_logprobs": 1}, "top_logprobs"),
        (completion, {"presence_penalty": 2.01}, "presence_penalty"),
        (completion, {"frequency_penalty": -2.01}, "frequency_penalty"),
        (completion, {"repetition_penalty": 0}, "repetition_penalty"),
        (completion, {"logit_bias": {"5": 100.5}}, "logit_bias"),
        (completion, {"logit_bias": {"-5": 1}}, "logit_bias"),
        (completion, {"logit_bias": {"x": 1}}, "logit_bias"),
        (completion, {"logit_bias": {str(token): 1 for token in range(MAX_BIASES + 1)}}, "logit_bias"),
        (completion, {"min_tokens": 17}, "min_tokens"),
        (chat, {"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ],
)
def test_what_shapes_logits_is_bounded_by_name(call: Any, fields: dict[str, Any], param: str) -> None:
    assert refusal(call, **fields).param == param


def test_what_shapes_logits_is_taken_at_its_bounds() -> None:
    bias = {str(token): -100 for token in range(MAX_BIASES)}
    plan = chat(
        presence_penalty=-2, frequency_penalty=2, repetition_penalty=0.01, logit_bias=bias, max_tokens=5, min_tokens=5
    )
    sampling = plan.choices[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2.0, 2.0, 0.01)
    assert sampling.logit_bias == tuple(Bias(token, -100.0) for token in range(MAX_BIASES))
    assert plan.choices[0].limits.min_tokens == 5


def test_a_reply_can_be_sent_back_as_clients_dump_it() -> None:
    empty = dict.fromkeys(("refusal", "audio", "function_call", "tool_calls", "annotations"), None)
    plan = chat(messages=[{"role": "assistant", "content": "Hello"} | empty])
    assert plan.choices[0].input.messages == (Message("assistant", "Hello"),)  # type: ignore[union-attr]


def test_values_at_the_edge_of_their_bounds_are_taken() -> None:
    plan = completion(
        n=64,
        max_tokens=MAX_TOKENS,
        temperature=MAX_TEMPERATURE,
        top_p=1,
        top_k=MAX_TOP_K,
        min_p=1,
        seed=MAX_SEED,
        stop=["x" * MAX_STOP_CHARS] * MAX_STOPS,
        user="u" * MAX_LABEL,
        metadata={str(i): "" for i in range(MAX_METADATA)},
    )
    assert plan.choices[0].sampling == Sampling(MAX_TEMPERATURE, MAX_TOP_K, 1.0, 1.0, MAX_SEED)
    assert plan.choices[1].sampling.seed == 0, "seeds wrap"
    assert len(plan.choices) == 64


def test_with_a_seed_a_prompt_is_drawn_as_if_it_were_alone() -> None:
    together, alone = completion(prompt=["a", "b"], n=2, seed=7), completion(prompt="b", n=2, seed=7)
    assert together.choices[2:] == alone.choices
    assert [choice.sampling.seed for choice in alone.choices] == [7, 8]


def test_without_a_seed_no_two_choices_share_one() -> None:
    plan = completion(prompt=["a", "a"], n=2)
    assert len({choice.sampling.seed for choice in plan.choices}) == 4


def test_the_defaults_are_those_of_the_api() -> None:
    plan = completion()
    limits = Limits(COMPLETION_MAX_TOKENS, deadline_ms=3_600_000)
    assert plan.choices[0].limits == limits
    assert plan.choices[0].sampling.temperature == 1.0
    assert (plan.stream, plan.include_usage, plan.return_token_ids, plan.per_prompt) == (False, False, False, 1)
    assert chat().choices[0].limits.max_tokens is None


def test_the_salt_is_whose_request_it_is() -> None:
    assert completion().choices[0].tenant == ""
    assert {choice.tenant for choice in completion(n=2, cache_salt="s" * MAX_NAME).choices} == {"s" * MAX_NAME}


@pytest.mark.parametrize(
    ("stop", "stops"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())], ids=["one", "two", "[]", "null"]
)
def test_stop_is_a_string_or_a_list(stop: Any, stops: tuple[str, ...]) -> None:
    assert completion(stop=stop).choices[0].limits.stop == stops


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6), ({"max_tokens": 7, "max_completion_tokens": 7}, 7)],
    ids=["old name", "new name", "both"],
)
def test_a_chat_has_two_names_for_its_limit(fields: dict[str, int], limit: int) -> None:
    assert chat(**fields).choices[0].limits.max_tokens == limit


def test_two_limits_that_differ_are_refused() -> None:
    assert refusal(chat, max_tokens=5, max_completion_tokens=6).param == "max_tokens"


def test_content_parts_are_joined_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plan = chat(messages=[{"role": "developer", "content": parts}])
    assert plan.choices[0].input.messages == (Message("system", "a\nb"),)  # type: ignore[union-attr]


def test_the_bytes_of_a_fan_out_are_bounded() -> None:
    size = len(json.dumps(COMPLETION | {"n": 4}).encode())
    body = json.dumps(COMPLETION | {"n": 4}).encode()
    assert len(RequestDecoder(GatewaySettings(max_fanout_bytes=4 * size)).completion(body).choices) == 4
    with pytest.raises(ApiError) as caught:
        RequestDecoder(GatewaySettings(max_fanout_bytes=4 * size - 1)).completion(body)
    assert caught.value.param == "n"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"model": "\xff"}',
        b'{"tools":' + b"[" * 100_000,
    ],
    ids=["empty", "cut", "array", "null", "binary", "surrogate", "bad utf-8", "deep"],
)
@pytest.mark.parametrize("chatting", [False, True], ids=["completion", "chat"])
def test_what_is_not_a_body_is_refused(raw: bytes, chatting: bool) -> None:
    with pytest.raises(ApiError) as caught:
        (DECODER.chat if chatting else DECODER.completion)(raw)
    assert caught.value.status == 400


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(sorted({*CompletionBody.__struct_fields__, *ChatBody.__struct_fields__})), _json)
)
def test_no_json_object_is_more_than_refused(fields: dict[str, Any]) -> None:
    for call in (completion, chat):
        try:
            call(**fields)
        except ApiError as error:
            json.loads(error.body())


@given(st.binary(max_size=64))
def test_no_bytes_are_more_than_refused(raw: bytes) -> None:
    with pytest.raises(ApiError):
        DECODER.completion(raw)
