"""Fields that clients of the Messages API send for each feature: Anthropic's, then Baton's own."""

from collections.abc import Mapping
from typing import Any

from gateway.anthropic.decoding import MessagesDecoder
from gateway.settings import GatewaySettings
from tests.docs.clients.sample import ALWAYS, NO_FIELD, SAME_FIELDS, Column, Sample, ignored, of

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "time", "input_schema": {"type": "object"}}
OTHER = {"name": "weather", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"type": "tool_use", "id": "call_1", "name": "time", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "noon"}


def blocks(*content: Mapping[str, Any], named: str) -> Sample:
    """A message of the user with these blocks, of which `named` matters."""
    return Sample({"messages": [{"role": "user", "content": list(content)}]}, named)


def choice(named: str, **fields: Any) -> Sample:
    """Tools, and a choice among them that the cell names."""
    return Sample({"tools": [TOOL, OTHER], "tool_choice": fields}, named)


def source(kind: str) -> Mapping[str, str]:
    return {"type": "base64", "media_type": kind, "data": "eA=="}


SAMPLES: Mapping[str, Sample] = {
    **SAME_FIELDS,
    "System text": of(system="x"),
    "Text in parts": blocks({"type": "text", "text": "x"}, named="`text`"),
    "Images": blocks({"type": "image", "source": source("image/png")}, named="`image`"),
    "Audio": NO_FIELD,
    "Documents": blocks({"type": "document", "source": source("application/pdf")}, named="`document`"),
    "Several prompts in one request": NO_FIELD,
    "A prompt of token ids": NO_FIELD,
    "Text after the answer (fill in the middle)": NO_FIELD,
    "Continuing the last message": Sample({"messages": [USER, {"role": "assistant", "content": "x"}]}, "`assistant`"),
    "The prompt in the answer": NO_FIELD,
    "Conversations kept by the server": of(container="x"),
    "Functions": of(tools=[TOOL]),
    "Strict functions": Sample({"tools": [{**TOOL, "strict": True}]}, "`strict`"),
    "Results of tools": Sample(
        {"messages": [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]},
        "`tool_use`, `tool_result`",
    ),
    "No calls": choice("`tool_choice`", type="none"),
    "A call is required": choice("`tool_choice`", type="any"),
    "A named function is required": choice("`tool_choice`", type="tool", name="time"),
    "Some of the functions": choice("`tool_choice`", type="allowed_tools", tools=["time"]),
    "One call at most": choice("`tool_choice.disable_parallel_tool_use`", type="auto", disable_parallel_tool_use=True),
    "Functions in the older form": NO_FIELD,
    "Tools of the server": of(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "Reasoning on or off": of(thinking={"type": "disabled"}),
    "Effort of reasoning": Sample({"output_config": {"effort": "low"}}, "`output_config.effort`"),
    "Limit of reasoning": Sample({"thinking": {"type": "enabled", "budget_tokens": 10}}, "`thinking.budget_tokens`"),
    "Reasoning sent back": Sample(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]},
                USER,
            ]
        },
        "`thinking`",
    ),
    "JSON": Sample({"output_config": {"format": {"type": "json_object"}}}, "`output_config.format`"),
    "JSON by a schema": Sample(
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "`output_config.format`"
    ),
    "Limit of tokens": of(max_tokens=5),
    "Stop strings": of(stop_sequences=["x"]),
    "Presence and frequency penalty": of(presence_penalty=0.5),
    "Usage of a stream": ALWAYS,
    "Streams that survive a connection": of(stream=True, resume_s=5),
    "Log-probabilities": of(logprobs=True),
    "Verbosity": of(verbosity="low"),
    "Labels of the client": ignored(metadata={"user_id": "x"}),
    "Prompts that are kept": of(cache_control={"type": "ephemeral"}),
    "Hints for caches": NO_FIELD,
    "Service tier": ignored(service_tier="standard_only"),
    "Priority among the requests of a key": NO_FIELD,
}

COLUMNS = (
    Column(
        "`/v1/messages`",
        lambda: MessagesDecoder(GatewaySettings()).messages,
        {"model": "tiny", "messages": [USER], "max_tokens": 100},
        SAMPLES,
    ),
)
