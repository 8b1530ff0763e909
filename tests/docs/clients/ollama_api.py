"""Fields that clients of Ollama's API send for each feature."""

from collections.abc import Mapping
from typing import Any

import anyio

from gateway.ollama.answer import OllamaAnswer
from gateway.ollama.decoding import OllamaDecoder
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decode, Decoded
from tests.docs.clients.sample import ALWAYS, NO_FIELD, SAME_FIELDS, SAMPLING, Column, Sample, of

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "time"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"id": "call_1", "function": {"name": "time", "arguments": {}}}


def option(**fields: Any) -> Sample:
    """Members of `options`."""
    return Sample({"options": fields}, ", ".join(f"`options.{each}`" for each in fields))


SHARED: Mapping[str, Sample] = {
    **SAME_FIELDS,
    **{feature: option(**sample.fields) for feature, sample in SAMPLING.items()},
    "Text in parts": NO_FIELD,
    "Audio": NO_FIELD,
    "Documents": NO_FIELD,
    "Several prompts in one request": NO_FIELD,
    "A prompt of token ids": of(context=[1, 2]),
    "Text after the answer (fill in the middle)": of(suffix="x"),
    "A template of the client's own": of(template="{{ .Prompt }}"),
    "The prompt in the answer": NO_FIELD,
    "Functions": of(tools=[TOOL]),
    "Strict functions": Sample(
        {"tools": [{"type": "function", "function": {"name": "time", "strict": True}}]}, "`strict`"
    ),
    "No calls": of(tool_choice="none"),
    "A call is required": of(tool_choice="required"),
    "A named function is required": of(tool_choice={"type": "function", "function": {"name": "time"}}),
    "Some of the functions": NO_FIELD,
    "One call at most": of(parallel_tool_calls=False),
    "Functions in the older form": NO_FIELD,
    "Tools of the server": NO_FIELD,
    "Reasoning on or off": of(think=True),
    "Effort of reasoning": of(think="low"),
    "Limit of reasoning": of(thinking_token_budget=100),
    "JSON": of(format="json"),
    "JSON by a schema": of(format=SCHEMA),
    "Limit of tokens": option(num_predict=5),
    "Stop strings": option(stop=["x"]),
    "Presence and frequency penalty": option(presence_penalty=0.5, frequency_penalty=0.5),
    "Repetition penalty": option(repeat_penalty=1.5),
    "Streaming": of(stream=False),
    "Usage of a stream": ALWAYS,
    "Streams that survive a connection": of(resume_s=5),
    "Log-probabilities": of(logprobs=True, top_logprobs=2),
    "Verbosity": of(verbosity="low"),
    "Labels of the client": NO_FIELD,
    "Prompts that are kept": NO_FIELD,
    "Hints for caches": NO_FIELD,
    "Service tier": NO_FIELD,
    "Priority among the requests of a key": NO_FIELD,
}
CHAT: Mapping[str, Sample] = {
    "System text": Sample({"messages": [{"role": "system", "content": "x"}, USER]}, "`system`"),
    "Images": Sample({"messages": [{**USER, "images": ["eA=="]}]}, "`images`"),
    "Continuing the last message": NO_FIELD,
    "Conversations kept by the server": NO_FIELD,
    "Results of tools": Sample(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_name": "time", "content": "noon"},
            ]
        },
        "`tool_calls`, `tool_name`, `tool_call_id`",
    ),
    "Reasoning sent back": Sample(
        {"messages": [USER, {"role": "assistant", "content": "x", "thinking": "Hm."}, USER]}, "`thinking`"
    ),
}
GENERATE: Mapping[str, Sample] = {
    "System text": of(system="x"),
    "Images": of(images=["eA=="]),
    "Continuing the last message": of(raw=True),
    "Conversations kept by the server": of(context=[1, 2]),
    "Results of tools": NO_FIELD,
    "Reasoning sent back": NO_FIELD,
}


def decoder(path: str) -> Decode:
    """The decoder of a path. Its renderers tell no time."""

    async def make() -> OllamaDecoder:
        settings = GatewaySettings()
        return OllamaDecoder(Router(settings), settings)

    made = anyio.run(make)

    def decode(raw: bytes) -> Decoded:
        decoded = made.chat(raw) if path == "/api/chat" else made.generate(raw)
        assert isinstance(decoded, Decoded)
        assert isinstance(decoded.renderer, OllamaAnswer)
        decoded.renderer.began, decoded.renderer.keep_alive = 0, b""
        return decoded

    return decode


COLUMNS = (
    Column("`/api/chat`", lambda: decoder("/api/chat"), {"model": "tiny", "messages": [USER]}, {**SHARED, **CHAT}),
    Column(
        "`/api/generate`", lambda: decoder("/api/generate"), {"model": "tiny", "prompt": "hi"}, {**SHARED, **GENERATE}
    ),
)
