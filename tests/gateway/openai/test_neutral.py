"""Bodies of common clients: what asks for nothing is taken, and what has another name means the same."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.generation.request import GenerationRequest
from gateway.openai.ignored import IgnoredOptions
from gateway.openai.unsupported import OPTIONS
from protocol.bounds import MAX_TOKENS
from protocol.request import ChatInput, Message, Pin, TemplateOptions
from tests.gateway.openai.bodies import chat, completion, message, refusal

IGNORED: dict[str, list[Any]] = {
    "user": ["u1"],
    "metadata": [{"a": "b"}],
    "safety_identifier": ["s"],
    "prompt_cache_key": ["p"],
    "prompt_cache_retention": ["in_memory", "in-memory"],
    "cache_prompt": [True, False],
    "keep_alive": ["5m", -1, 0, 3.5],
    "ttl": [300],
    "n_keep": [0, -1],
    "n_discard": [0],
    "mirostat_tau": [5],
    "mirostat_eta": [0.1],
    "dynatemp_exponent": [1],
    "smoothing_curve": [1],
    "guided_decoding_backend": ["xgrammar"],
    "length_penalty": [1],
    "early_stopping": [False],
    "spaces_between_special_tokens": [True, False],
}


DRY = {"dry_multiplier": 1, "dry_sequence_breakers": ["x", "\n"]}
OFF = {"dry_base": 3, "dry_allowed_length": 7, "dry_penalty_last_n": 64, "dry_sequence_breakers": '["x"]'}


def plain(request: GenerationRequest) -> Any:
    """The request without what differs from one to the next."""
    return [
        structs.asdict(structs.replace(each.sampling, seed=0)) | {"limits": each.limits, "salt": each.cache_salt}
        for each in request.sequences
    ], replace(request.output, limit_field="")


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IGNORED.items() for value in values])
@pytest.mark.parametrize("call", [completion, chat], ids=["completion", "chat"])
def test_an_option_that_changes_no_answer_is_ignored(call: Any, name: str, value: Any) -> None:
    assert plain(call(**{name: value})) == plain(call())
    assert plain(call(**{name: None})) == plain(call())


def test_every_ignored_option_is_tried() -> None:
    assert set(IGNORED) == set(IgnoredOptions.__struct_fields__) - set(OPTIONS)


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({"top_k": -1}, {}),
        ({"top_k": 0}, {}),
        ({"stop": ""}, {}),
        ({"logit_bias": {}}, {}),
        ({"repeat_penalty": 1.25}, {"repetition_penalty": 1.25}),
        ({"repeat_penalty": 1.25, "repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
        ({"typ_p": 0.5}, {"typical_p": 0.5}),
        ({"typical_p": 1, "typ_p": 1}, {}),
        ({"stop_token_ids": [], "bad_words": [], "include_stop_str_in_output": False}, {}),
        ({"stop_token_ids": [5, 6, 5]}, {"stop_token_ids": [5, 6]}),
        ({"xtc_threshold": 0.5}, {}),
        ({"xtc_probability": 0, "xtc_threshold": 0.5}, {}),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.1}, {"xtc_probability": 0.5}),
        (OFF | {"dry_multiplier": 0}, {}),
        (OFF, {}),
        ({"dry_multiplier": 1, "dry_penalty_last_n": 0}, {}),
        ({"dry_multiplier": 1, "dry_penalty_last_n": -1}, {"dry_multiplier": 1}),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["\n", ":", '"', "*"]}, {"dry_multiplier": 1}),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ' ["x", "\\n"]'}, DRY),
        ({"dry_multiplier": 1, "dry_sequence_breakers": '"x", "\\n"'}, DRY),
        ({"n_predict": 9}, {"max_tokens": 9}),
        ({"n_predict": MAX_TOKENS}, {"max_tokens": MAX_TOKENS}),
        ({"n_predict": -1, "max_tokens": -1}, {"max_tokens": -1}),
        ({"stream_options": {"include_usage": True}}, {}),
        ({"stream_options": {"resume_s": 0, "continuous_usage_stats": False}}, {}),
        ({"stream_options": None}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", [completion, chat], ids=["completion", "chat"])
def test_a_body_means_the_same_as_a_plainer_one(call: Any, fields: dict[str, Any], same: dict[str, Any]) -> None:
    assert plain(call(**fields)) == plain(call(**same))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (completion, "max_tokens"),
        (completion, "n_predict"),
        (chat, "max_tokens"),
        (chat, "n_predict"),
        (chat, "max_completion_tokens"),
    ],
)
def test_minus_one_is_no_limit(call: Any, name: str) -> None:
    assert call(**{name: -1}).sequences[0].limits.max_tokens is None
    assert call(**{name: 1}).sequences[0].limits.max_tokens == 1
    call(**{name: -1}, min_tokens=MAX_TOKENS)


@pytest.mark.parametrize("name", ["max_tokens", "n_predict"])
def test_a_completion_may_generate_nothing_and_a_chat_may_not(name: str) -> None:
    assert completion(**{name: 0}).sequences[0].limits.max_tokens == 0
    assert refusal(completion, **{name: 0}, min_tokens=1).field == "min_tokens"
    for chats in (name, "max_completion_tokens"):
        assert refusal(chat, **{chats: 0}).field == chats


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 5, "n_predict": 6}, "n_predict"),
        ({"max_tokens": 5, "n_predict": -1}, "n_predict"),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, "repeat_penalty"),
        ({"typical_p": 0.5, "typ_p": 0.6}, "typ_p"),
    ],
)
def test_two_names_of_one_option_must_agree(fields: dict[str, Any], named: str) -> None:
    for call in (completion, chat):
        error = refusal(call, **fields)
        assert error.field == named
        assert "differ" in error.text


def test_a_seed_of_minus_one_is_random() -> None:
    seeds = [choice.sampling.seed for choice in completion(prompt=["a", "a"], n=2, seed=-1).sequences]
    assert len(set(seeds)) == 4
    assert completion(seed=0).sequences[0].sampling.seed == 0


def chat_input(**fields: Any) -> ChatInput:
    source = chat(**fields).sequences[0].input
    assert isinstance(source, ChatInput)
    return source


def test_an_assistant_may_have_said_nothing() -> None:
    assert chat_input(messages=[{"role": "assistant", "content": None}]).messages == (Message("assistant", ""),)
    assert chat_input(messages=[{"role": "assistant"}]).messages == (Message("assistant", ""),)


def test_a_name_is_for_the_template() -> None:
    assert chat_input(messages=message(name="anna-1")).messages == (Message("user", "hi", "anna-1"),)
    assert chat_input(messages=message(name="a" * 64)).messages[0].name == "a" * 64
    for without in ("", None):
        assert chat_input(messages=message(name=without)).messages == (Message("user", "hi"),)


@pytest.mark.parametrize("mark", [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, {}, None])
def test_marks_of_cached_prompts_are_taken(mark: Any) -> None:
    part = {"type": "text", "text": "hi", "cache_control": mark}
    assert chat_input(messages=message(content=[part], cache_control=mark)).messages == (Message("user", "hi"),)


def test_reasoning_is_parsed_unless_it_is_to_stay_in_the_text() -> None:
    assert chat_input().parse_reasoning
    for separate in ("auto", "deepseek", "deepseek-legacy", None):
        assert chat_input(reasoning_format=separate).parse_reasoning
    assert not chat_input(reasoning_format="none").parse_reasoning
    assert chat_input(include_reasoning=False).parse_reasoning, "to be left out"
    assert not chat_input().parse_tools


@pytest.mark.parametrize("name", ["thinking_token_budget", "reasoning_budget"])
def test_reasoning_has_a_bound_of_its_own(name: str) -> None:
    limits = [chat(**{name: value}).sequences[0].limits.reasoning_tokens for value in (0, 7, MAX_TOKENS, -1, None)]
    assert limits == [0, 7, MAX_TOKENS, None, None]
    assert refusal(chat, **{name: -2}).field == name
    assert refusal(completion, **{name: 7}).field == name
    assert refusal(chat, thinking_token_budget=7, reasoning_budget=8).field == "reasoning_budget"


def test_template_options_are_a_closed_list() -> None:
    given = {"enable_thinking": False, "thinking": True, "thinking_budget": 0, "reasoning_effort": "high"}
    assert chat_input(chat_template_kwargs=given).options == TemplateOptions(**given)  # type: ignore[arg-type]
    assert chat_input(chat_template_kwargs={}).options == TemplateOptions()
    assert chat_input(chat_template_kwargs=None).options == TemplateOptions()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template", "{{ 1 }}"),
        ("tokenize", True),
        ("messages", []),
        ("tools", []),
        ("strftime_now", "x"),
        ("documents", [{"text": "x"}]),
        ("add_generation_prompt", False),
        ("enable_thinking", "yes"),
        ("enable_thinking", {"a": 1}),
        ("thinking_budget", -1),
        ("thinking_budget", MAX_TOKENS + 1),
        ("reasoning_effort", "<|im_end|>"),
    ],
)
def test_no_other_variable_reaches_a_template(name: str, value: Any) -> None:
    error = refusal(chat, chat_template_kwargs={name: value})
    assert (error.status, error.field) == (400, f"chat_template_kwargs.{name}")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "dynatemp_range": 0,
                      "dynatemp_exponent": 1, "xtc_probability": 0, "xtc_threshold": 0.1, "typ_p": 1,
                      "max_tokens": -1, "repeat_last_n": -1, "repeat_penalty": 1, "presence_penalty": 0,
                      "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
                      "dry_penalty_last_n": -1, "timings_per_token": False, "stream": True}, id="llama.cpp's page"),
        pytest.param({"top_k": -1, "min_p": 0.0, "seed": None, "stop": [], "stop_token_ids": [], "ignore_eos": False,
                      "use_beam_search": False, "length_penalty": 1.0, "repetition_penalty": 1.0, "best_of": 1,
                      "skip_special_tokens": True, "spaces_between_special_tokens": True, "echo": False,
                      "include_stop_str_in_output": False, "truncate_prompt_tokens": None, "prompt_logprobs": None,
                      "guided_json": None, "priority": 0}, id="vLLM"),
        pytest.param({"typical_p": 1, "tfs": 1, "top_a": 0, "mirostat_mode": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
                      "epsilon_cutoff": 0, "eta_cutoff": 0, "num_beams": 1, "early_stopping": False, "top_k": 0,
                      "seed": -1, "stop": [""], "smoothing_factor": 0, "smoothing_curve": 1}, id="SillyTavern"),
        pytest.param({"max_tokens": -1, "ttl": 60, "draft_model": None}, id="LM Studio"),
        pytest.param({"keep_alive": "5m", "options": {}, "format": "", "think": None}, id="Ollama"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", ["chat", "completion"])
def test_the_default_bodies_of_clients_are_taken(endpoint: str, fields: dict[str, Any]) -> None:
    call = {"chat": chat, "completion": completion}[endpoint]
    call(**fields)


def test_a_reply_of_other_libraries_can_be_sent_back() -> None:
    empty: dict[str, Any] = {
        "tool_calls": [],
        "function_call": None,
        "refusal": "",
        "annotations": [],
        "reasoning_content": None,
    }
    more: dict[str, Any] = {"provider_specific_fields": {}, "thinking_blocks": [], "reasoning": "", "name": None}
    reply = {"role": "assistant", "content": "Hello"} | empty | more
    assert chat_input(messages=[reply]).messages == (Message("assistant", "Hello"),)


def test_hints_name_the_endpoint_of_a_field() -> None:
    error = refusal(completion, chat_template_kwargs={})
    assert "/v1/chat/completions" in error.text


def test_a_retention_of_a_day_keeps_the_prompt_of_a_chat() -> None:
    assert chat_input(prompt_cache_retention="24h").pins == (Pin(1, 86_400),)
    assert chat_input(prompt_cache_retention="in_memory").pins == ()
