"""Bodies at the door: what becomes of each field, and every bound at its edge."""

import json
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.generation.request import OutputOptions
from gateway.openai.answer import OpenAIAnswer
from gateway.openai.decoding import COMPLETION_MAX_TOKENS, RequestDecoder
from gateway.openai.ignored import MAX_LABEL, MAX_METADATA
from gateway.settings import GatewaySettings
from protocol.bounds import (
    MAX_BIASES,
    MAX_NAME,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    MAX_TOP_K,
    MAX_TOP_LOGPROBS,
)
from protocol.errors import ErrorCode
from protocol.request import Bias, Limits, Message, Sampling
from protocol.scheduling import MAX_PRIORITY
from tests.gateway.openai.bodies import COMPLETION, DECODER, chat, completion, refusal


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
    assert plan.sequences[0].sampling.logprobs == asked
    assert plan.output.with_tokens == (asked is not None)


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
    assert refusal(call, **fields).field == param


def test_what_shapes_logits_is_taken_at_its_bounds() -> None:
    bias = {str(token): -100 for token in range(MAX_BIASES)}
    plan = chat(
        presence_penalty=-2, frequency_penalty=2, repetition_penalty=0.01, logit_bias=bias, max_tokens=5, min_tokens=5
    )
    sampling = plan.sequences[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2.0, 2.0, 0.01)
    assert sampling.logit_bias == tuple(Bias(token, -100.0) for token in range(MAX_BIASES))
    assert plan.sequences[0].limits.min_tokens == 5


def test_choices_share_what_is_large_about_their_sampling() -> None:
    """Else a body of 4 kB would take a megabyte."""
    first, *others = completion(prompt=["a", "b"], n=3, seed=7, logit_bias={"5": 1, "6": 2}).sequences
    assert all(each.sampling.logit_bias is first.sampling.logit_bias for each in others)
    assert [each.sampling.seed for each in (first, *others)] == [7, 8, 9] * 2


def test_a_reply_can_be_sent_back_as_clients_dump_it() -> None:
    empty = dict.fromkeys(("refusal", "audio", "function_call", "tool_calls", "annotations"), None)
    plan = chat(messages=[{"role": "assistant", "content": "Hello"} | empty])
    assert plan.sequences[0].input.messages == (Message("assistant", "Hello"),)  # type: ignore[union-attr]


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
    assert plan.sequences[0].sampling == Sampling(MAX_TEMPERATURE, MAX_TOP_K, 1.0, 1.0, MAX_SEED)
    assert plan.sequences[1].sampling.seed == 0, "seeds wrap"
    assert len(plan.sequences) == 64


def test_with_a_seed_a_prompt_is_sampled_as_if_it_were_alone() -> None:
    together, alone = completion(prompt=["a", "b"], n=2, seed=7), completion(prompt="b", n=2, seed=7)
    assert together.sequences[2:] == alone.sequences
    assert [choice.sampling.seed for choice in alone.sequences] == [7, 8]


def test_without_a_seed_no_two_choices_share_one() -> None:
    plan = completion(prompt=["a", "a"], n=2)
    assert len({choice.sampling.seed for choice in plan.sequences}) == 4


def test_the_defaults_are_those_of_the_api() -> None:
    plan = completion()
    assert plan.sequences[0].limits == Limits(COMPLETION_MAX_TOKENS)
    assert plan.sequences[0].sampling.temperature == 1.0
    assert plan.output == OutputOptions(stream=False, per_prompt=1, with_tokens=False, resume_s=0.0)
    assert DECODER.completion(json.dumps(COMPLETION).encode()).renderer == OpenAIAnswer(chat=False)
    assert chat().sequences[0].limits.max_tokens is None


def test_a_priority_is_refused_where_it_has_no_effect() -> None:
    body = COMPLETION | {"priority": -MAX_PRIORITY}
    with pytest.raises(RequestError, match="scheduler-policy priority") as refused:
        completion(priority=-MAX_PRIORITY)
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "priority")
    decoder = RequestDecoder(GatewaySettings(scheduler_policy="priority"))
    assert decoder.completion(json.dumps(body).encode()).request.priority == -MAX_PRIORITY
    assert completion(priority=0).priority == 0


def test_every_choice_has_the_salt() -> None:
    assert completion().sequences[0].cache_salt == ""
    assert {choice.cache_salt for choice in completion(n=2, cache_salt="s" * MAX_NAME).sequences} == {"s" * MAX_NAME}


@pytest.mark.parametrize(
    ("stop", "stops"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())], ids=["one", "two", "[]", "null"]
)
def test_stop_is_a_string_or_a_list(stop: Any, stops: tuple[str, ...]) -> None:
    assert completion(stop=stop).sequences[0].limits.stop == stops


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6), ({"max_tokens": 7, "max_completion_tokens": 7}, 7)],
    ids=["old name", "new name", "both"],
)
def test_a_chat_has_two_names_for_its_limit(fields: dict[str, int], limit: int) -> None:
    assert chat(**fields).sequences[0].limits.max_tokens == limit


def test_two_limits_that_differ_are_refused() -> None:
    assert refusal(chat, max_tokens=5, max_completion_tokens=6).field == "max_tokens"


def test_content_parts_are_joined_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    plan = chat(messages=[{"role": "developer", "content": parts}])
    assert plan.sequences[0].input.messages == (Message("system", "a\nb"),)  # type: ignore[union-attr]


def test_the_bytes_of_a_fan_out_are_bounded() -> None:
    size = len(json.dumps(COMPLETION | {"n": 4}).encode())
    body = json.dumps(COMPLETION | {"n": 4}).encode()
    assert len(RequestDecoder(GatewaySettings(max_fanout_bytes=4 * size)).completion(body).request.sequences) == 4
    with pytest.raises(RequestError) as caught:
        RequestDecoder(GatewaySettings(max_fanout_bytes=4 * size - 1)).completion(body)
    assert caught.value.field == "n"


@pytest.mark.parametrize("body", [completion, chat])
def test_sparse_prefill_is_left_to_the_server_unless_a_request_says(body: Any) -> None:
    plans = [body(), body(sparse_prefill=False), body(sparse_prefill=True, sparse_prefill_keep=0.05)]
    limits = [plan.sequences[0].limits for plan in plans]
    assert [(each.sparse_prefill, each.sparse_keep) for each in limits] == [(None, None), (False, None), (True, 0.05)]


@pytest.mark.parametrize("body", [completion, chat])
def test_drafts_are_left_to_the_server_unless_they_are_refused(body: Any) -> None:
    plans = [body(), body(speculate=None), body(speculate=True), body(speculate=False)]
    assert [plan.sequences[0].limits.speculate for plan in plans] == [True, True, True, False]
