"""Fields that clients of chat completions and completions send for each feature: OpenAI's, then vLLM's."""

from collections.abc import Mapping
from typing import Any

from gateway.openai.decoding import RequestDecoder
from gateway.settings import GatewaySettings
from tests.docs.clients.sample import NO_FIELD, SAME_FIELDS, Column, Sample, ignored, of

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "time"}}
OTHER = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
NAMED = {"type": "function", "function": {"name": "time"}}
SETTINGS = GatewaySettings(scheduler_policy="priority")


def messages(*given: Mapping[str, Any], named: str) -> Sample:
    """A conversation; `named` is the part of a message that matters."""
    return Sample({"messages": list(given)}, named)


def tools(**fields: Any) -> Sample:
    """Tools, and a choice among them that the cell names."""
    return Sample({"tools": [TOOL, OTHER], **fields}, ", ".join(f"`{each}`" for each in fields))


SHARED: Mapping[str, Sample] = {
    **SAME_FIELDS,
    "Functions": of(tools=[TOOL]),
    "No calls": tools(tool_choice="none"),
    "A call is required": tools(tool_choice="required"),
    "A named function is required": tools(tool_choice=NAMED),
    "Some of the functions": tools(
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    ),
    "One call at most": tools(parallel_tool_calls=False),
    "Functions in the older form": of(functions=[{"name": "time"}]),
    "Tools of the server": of(web_search_options={}),
    "Reasoning on or off": of(enable_thinking=True),
    "Effort of reasoning": of(reasoning_effort="low"),
    "Limit of reasoning": of(thinking_token_budget=100),
    "Documents": of(documents=[{"text": "x"}]),
    "Continuing the last message": of(continue_final_message=True),
    "The prompt in the answer": of(echo=True),
    "Conversations kept by the server": of(store=True),
    "JSON": of(response_format={"type": "json_object"}),
    "JSON by a schema": of(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    ),
    "Limit of tokens": of(max_tokens=5),
    "Stop strings": of(stop=["x"]),
    "Presence and frequency penalty": of(presence_penalty=0.5, frequency_penalty=0.5),
    "Usage of a stream": Sample(
        {"stream": True, "stream_options": {"include_usage": True}}, "`stream_options.include_usage`"
    ),
    "Streams that survive a connection": Sample(
        {"stream": True, "stream_options": {"resume_s": 5}}, "`stream_options.resume_s`"
    ),
    "Verbosity": of(verbosity="low"),
    "Labels of the client": ignored(user="x", metadata={"a": "b"}, safety_identifier="x"),
    "Hints for caches": ignored(prompt_cache_key="x", prompt_cache_retention="in_memory"),
    "Service tier": of(service_tier="flex"),
    "Priority among the requests of a key": of(priority=5),
}
"""The same fields for both paths. A chat's field is sent to completions as well, to see what becomes of it there."""

CHAT: Mapping[str, Sample] = {
    "Prompts that are kept": of(prompt_cache_retention="24h"),
    "System text": messages({"role": "system", "content": "x"}, USER, named="`system`, `developer`"),
    "Text in parts": messages({"role": "user", "content": [{"type": "text", "text": "x"}]}, named="`text`"),
    "Images": messages(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]},
        named="`image_url`",
    ),
    "Audio": of(audio={"voice": "x", "format": "wav"}),
    "Several prompts in one request": NO_FIELD,
    "A prompt of token ids": NO_FIELD,
    "Text after the answer (fill in the middle)": of(suffix="x"),
    "Strict functions": Sample(
        {"tools": [{"type": "function", "function": {"name": "time", "strict": True}}]}, "`strict`"
    ),
    "Results of tools": messages(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        named="`tool_calls`, `tool_call_id`",
    ),
    "Reasoning sent back": messages(
        USER,
        {"role": "assistant", "content": "x", "reasoning_content": "Hm."},
        USER,
        named="`reasoning_content`, `reasoning`",
    ),
    "Log-probabilities": of(logprobs=True, top_logprobs=2),
}
COMPLETION: Mapping[str, Sample] = {
    "Prompts that are kept": ignored(prompt_cache_retention="24h"),
    **dict.fromkeys(("System text", "Text in parts", "Images", "Results of tools", "Reasoning sent back"), NO_FIELD),
    "Audio": of(audio={"voice": "x", "format": "wav"}),
    "Several prompts in one request": of(prompt=["a", "b"]),
    "A prompt of token ids": of(prompt=[1, 2]),
    "Text after the answer (fill in the middle)": of(suffix="x"),
    "Strict functions": of(tools=[{"type": "function", "function": {"name": "time", "strict": True}}]),
    "Log-probabilities": of(logprobs=2),
}

COLUMNS = (
    Column(
        "`/v1/chat/completions`",
        lambda: RequestDecoder(SETTINGS).chat,
        {"model": "tiny", "messages": [USER]},
        {**SHARED, **CHAT},
    ),
    Column(
        "`/v1/completions`",
        lambda: RequestDecoder(SETTINGS).completion,
        {"model": "tiny", "prompt": "hi"},
        {**SHARED, **COMPLETION},
    ),
)
