"""Bodies that are refused at the door: every refusal names its field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.openai.errors import error_object
from gateway.openai.ignored import MAX_LABEL, MAX_METADATA
from gateway.openai.schema import MAX_PARTICIPANT, MAX_PARTS, ChatBody, CompletionBody
from protocol.bounds import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BREAKERS,
    MAX_DRY,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
)
from protocol.scheduling import MAX_PRIORITY
from tests.gateway.openai.bodies import CALL, DECODER, chat, completion, message, refusal

BAD: list[tuple[str, Any, str]] = [
    ("model", "", "model"),
    ("model", 7, "model"),
    ("model", "m" * 129, "model"),
    ("n", 0, "n"),
    ("n", 65, "n"),
    ("n", 10**30, "n"),
    ("n", 1.5, "n"),
    ("max_tokens", -2, "max_tokens"),
    ("n_predict", -2, "n_predict"),
    ("max_tokens", MAX_TOKENS + 1, "max_tokens"),
    ("temperature", -0.1, "temperature"),
    ("temperature", MAX_TEMPERATURE + 1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("top_p", 0, "top_p"),
    ("top_p", 1.1, "top_p"),
    ("top_k", -2, "top_k"),
    ("top_k", MAX_TOP_K + 1, "top_k"),
    ("min_p", -0.1, "min_p"),
    ("min_p", 1.1, "min_p"),
    ("seed", -2, "seed"),
    ("seed", MAX_SEED + 1, "seed"),
    ("stop", [7], "stop[0]"),
    ("stop", [None] * (MAX_STOPS + 1), "stop"),
    ("repeat_penalty", 0, "repeat_penalty"),
    ("repeat_penalty", 101, "repeat_penalty"),
    ("keep_alive", [], "keep_alive"),
    ("cache_prompt", 1, "cache_prompt"),
    ("dry_sequence_breakers", ["x"] * (MAX_BREAKERS + 1), "dry_sequence_breakers"),
    ("dry_sequence_breakers", json.dumps(["x"] * (MAX_BREAKERS + 1)), "dry_sequence_breakers"),
    ("dry_sequence_breakers", '["x', "dry_sequence_breakers"),
    ("dry_sequence_breakers", "[7]", "dry_sequence_breakers"),
    ("dry_sequence_breakers", '[""]', "dry_sequence_breakers"),
    ("dry_sequence_breakers", ["x" * (MAX_STOP_CHARS + 1)], "dry_sequence_breakers[0]"),
    ("dry_multiplier", -0.1, "dry_multiplier"),
    ("dry_multiplier", MAX_DRY + 0.1, "dry_multiplier"),
    ("dry_base", 0.9, "dry_base"),
    ("dry_base", MAX_DRY + 1, "dry_base"),
    ("dry_allowed_length", 0, "dry_allowed_length"),
    ("dry_allowed_length", MAX_TOKENS + 1, "dry_allowed_length"),
    ("dry_penalty_last_n", -2, "dry_penalty_last_n"),
    ("dry_penalty_last_n", MAX_TOKENS + 1, "dry_penalty_last_n"),
    ("xtc_probability", -0.1, "xtc_probability"),
    ("xtc_probability", 1.1, "xtc_probability"),
    ("xtc_threshold", 1.1, "xtc_threshold"),
    ("typical_p", 0, "typical_p"),
    ("typ_p", 1.1, "typ_p"),
    ("bad_words", [""], "bad_words[0]"),
    ("bad_words", "x", "bad_words"),
    ("bad_words", ["x"] * (MAX_BAD_WORDS + 1), "bad_words"),
    ("bad_words", ["x" * (MAX_STOP_CHARS + 1)], "bad_words[0]"),
    ("allowed_token_ids", [], "allowed_token_ids"),
    ("allowed_token_ids", [1, -1], "allowed_token_ids[1]"),
    ("allowed_token_ids", 7, "allowed_token_ids"),
    ("allowed_token_ids", [1] * (MAX_ALLOWED_TOKENS + 1), "allowed_token_ids"),
    ("stop_token_ids", [-1], "stop_token_ids[0]"),
    ("stop_token_ids", [MAX_TOKEN_ID + 1], "stop_token_ids[0]"),
    ("stop_token_ids", 7, "stop_token_ids"),
    ("stop_token_ids", [1] * (MAX_STOP_IDS + 1), "stop_token_ids"),
    ("include_stop_str_in_output", 1, "include_stop_str_in_output"),
    ("stop", ["x"] * (MAX_STOPS + 1), "stop"),
    ("stop", "x" * (MAX_STOP_CHARS + 1), "stop"),
    ("stop", 7, "stop"),
    ("stream", "yes", "stream"),
    ("stream_options", {"resume_s": 1}, "stream_options.resume_s"),
    ("stream_options", {"continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
    ("stream_options", {"include_obfuscation": True}, "stream_options.include_obfuscation"),
    ("stream_options", {"other": True}, "stream_options.other"),
    ("ignore_eos", 1, "ignore_eos"),
    ("speculate", "off", "speculate"),
    ("sparse_prefill", "on", "sparse_prefill"),
    ("sparse_prefill_keep", 0.049, "sparse_prefill_keep"),
    ("sparse_prefill_keep", 1.01, "sparse_prefill_keep"),
    ("return_token_ids", "x", "return_token_ids"),
    ("user", "u" * (MAX_LABEL + 1), "user"),
    ("cache_salt", "s" * (MAX_NAME + 1), "cache_salt"),
    ("priority", MAX_PRIORITY + 1, "priority"),
    ("priority", -MAX_PRIORITY - 1, "priority"),
    ("metadata", {str(i): "" for i in range(MAX_METADATA + 1)}, "metadata"),
    ("no_such_field", 1, "no_such_field"),
    ("prompt_template", {}, "prompt_template"),
    ("prompt_logprobs", -1, "prompt_logprobs"),
    ("prompt_logprobs", MAX_TOP_LOGPROBS + 1, "prompt_logprobs"),
    ("best_of", 0, "best_of"),
]


@pytest.mark.parametrize(("field", "value", "param"), BAD, ids=[f"{f}={str(v)[:20]}" for f, v, _ in BAD])
@pytest.mark.parametrize("call", [completion, chat], ids=["completion", "chat"])
def test_a_bad_field_is_named(call: Any, field: str, value: Any, param: str) -> None:
    error = refusal(call, **{field: value})
    assert error.status == 400
    assert error.field == param
    assert field in error.text
    assert json.loads(error_object(error))["error"]["type"] == "invalid_request_error"


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
    assert refusal(completion, prompt=prompt).field == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        pytest.param([], "messages", id="none"),
        pytest.param("hi", "messages", id="string"),
        pytest.param(message() * (MAX_MESSAGES + 1), "messages", id="too many"),
        pytest.param([{"role": "user"}], "messages[0].content", id="no content"),
        pytest.param([{"content": "x"}], "messages[0].role", id="no role"),
        pytest.param(message(role="function"), "messages[0].role", id="role of old calls"),
        pytest.param(message(content=None), "messages[0].content", id="null content"),
        pytest.param(message(content=[]), "messages[0].content", id="no parts"),
        pytest.param(message(content=[{"type": "text"}]), "messages[0].content[0].text", id="part without text"),
        pytest.param(
            message(content=[{"type": "image_url", "image_url": {"url": "ftp://x"}}]),
            "messages[0].content[0].image_url",
            id="image",
        ),
        pytest.param(
            message(content=[{"type": "text", "text": ""}] * (MAX_PARTS + 1)), "messages[0].content", id="many parts"
        ),
        pytest.param(message() + message(name="bob<b>"), "messages[1].name", id="name with a mark"),
        pytest.param(message(name="bob\n"), "messages[0].name", id="name with a line break"),
        pytest.param(message(name="b" * (MAX_PARTICIPANT + 1)), "messages[0].name", id="long name"),
        pytest.param(message(name=7), "messages[0].name", id="name of another type"),
        pytest.param(message(role="system", content=None), "messages[0].content", id="null content of the system"),
        pytest.param(
            message(role="assistant", content=None, tool_calls=[{}]),
            "messages[0].tool_calls[0].id",
            id="empty tool call",
        ),
        pytest.param(message(reasoning_content="hm"), "messages[0].reasoning_content", id="reasoning"),
        pytest.param(message(tool_calls=[CALL]), "messages[0].tool_calls", id="tool calls of a user"),
        pytest.param(message(other=1), "messages[0].other", id="unknown field"),
    ],
)
def test_bad_messages_are_named(messages: Any, param: str) -> None:
    assert refusal(chat, messages=messages).field == param


@pytest.mark.parametrize(
    ("call", "fields", "sentence"),
    [
        (
            chat,
            {"messages": message(role="king")},
            "`messages[0].role` takes system, developer, user, assistant or tool, not 'king'",
        ),
        (
            chat,
            {"messages": message(content=[{"type": "input_audio", "text": ""}])},
            "`messages[0].content[0].type` takes text or image_url, not 'input_audio'",
        ),
        (
            chat,
            {"messages": message(content=[{"type": "video_url", "video_url": {"url": "https://example.org/v.mp4"}}])},
            "`messages[0].content[0].type` takes text or image_url, not 'video_url'",
        ),
        (
            chat,
            {"messages": message(content=[{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}])},
            "`messages[0].content[0].image_url` has no data",
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
def test_an_error_states_what_the_field_accepts(call: Any, fields: dict[str, Any], sentence: str) -> None:
    assert refusal(call, **fields).text == sentence


def test_unknown_and_missing_fields_have_a_sentence() -> None:
    assert refusal(completion, foo=1).text == "`foo` is not a parameter that Baton knows"
    assert refusal(chat, messages=message(other=1)).text == "`messages[0].other` is not a parameter that Baton knows"
    with pytest.raises(RequestError) as caught:
        DECODER.chat(b'{"model": "tiny"}')
    assert (caught.value.text, caught.value.field) == ("`messages` is required", "messages")


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
    ids=["empty", "unfinished", "array", "null", "binary", "surrogate", "bad utf-8", "deep"],
)
@pytest.mark.parametrize("chatting", [False, True], ids=["completion", "chat"])
def test_what_is_not_a_body_is_refused(raw: bytes, chatting: bool) -> None:
    with pytest.raises(RequestError) as caught:
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
        except RequestError as error:
            json.loads(error_object(error))


@given(st.binary(max_size=64))
def test_no_bytes_are_more_than_refused(raw: bytes) -> None:
    with pytest.raises(RequestError):
        DECODER.completion(raw)
