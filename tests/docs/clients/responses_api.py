"""Fields that clients of the Responses API send for each feature: OpenAI's, then Baton's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.tenant import tenant_of
from gateway.responses.answer.renderer import ResponseAnswer
from gateway.responses.service import ResponseService
from gateway.responses.store.stored import StoredResponse
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decode, Decoded
from tests.docs.clients.sample import ALWAYS, NO_FIELD, SAME_FIELDS, Column, Sample, ignored, of

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "time"}
OTHER = {"type": "function", "name": "weather"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
EARLIER = "resp_" + "0" * 24
STORED = StoredResponse(
    id=EARLIER,
    owner=tenant_of(b"", ""),
    created=0,
    status="completed",
    response=b'{"output":[]}',
    inputs=b'[{"role":"user","content":"before"}]',
)


def items(*given: Mapping[str, Any], named: str) -> Sample:
    """Items, of which `named` matters."""
    return Sample({"input": list(given)}, named)


def parts(part: Mapping[str, Any], named: str) -> Sample:
    """A message of the user with this part."""
    return items({"role": "user", "content": [part]}, named=named)


def tools(**fields: Any) -> Sample:
    """Tools, and a choice among them that the cell names."""
    return Sample({"tools": [TOOL, OTHER], **fields}, ", ".join(f"`{each}`" for each in fields))


def text_format(**fields: Any) -> Sample:
    """A format of the text."""
    return Sample({"text": {"format": fields}}, "`text.format`")


SAMPLES: Mapping[str, Sample] = {
    **SAME_FIELDS,
    "System text": of(instructions="x"),
    "Text in parts": parts({"type": "input_text", "text": "x"}, "`input_text`"),
    "Images": parts({"type": "input_image", "image_url": "data:image/png;base64,eA=="}, "`input_image`"),
    "Audio": parts({"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}, "`input_audio`"),
    "Documents": parts({"type": "input_file", "file_id": "x"}, "`input_file`"),
    "Several prompts in one request": NO_FIELD,
    "A prompt of token ids": NO_FIELD,
    "Text after the answer (fill in the middle)": NO_FIELD,
    "Continuing the last message": of(continue_final_message=True),
    "The prompt in the answer": NO_FIELD,
    "Conversations kept by the server": of(previous_response_id=EARLIER, store=False),
    "Functions": of(tools=[TOOL]),
    "Strict functions": Sample({"tools": [{**TOOL, "strict": True}]}, "`strict`"),
    "Results of tools": items(
        {"type": "function_call", "call_id": "call_1", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        named="`function_call`, `function_call_output`",
    ),
    "No calls": tools(tool_choice="none"),
    "A call is required": tools(tool_choice="required"),
    "A named function is required": tools(tool_choice=TOOL),
    "Some of the functions": tools(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}),
    "One call at most": tools(parallel_tool_calls=False),
    "Functions in the older form": NO_FIELD,
    "Tools of the server": of(tools=[{"type": "web_search"}]),
    "Reasoning on or off": Sample({"reasoning": {"effort": "none"}}, "`reasoning.effort`"),
    "Effort of reasoning": Sample({"reasoning": {"effort": "low"}}, "`reasoning.effort`"),
    "Limit of reasoning": of(thinking_token_budget=100),
    "Reasoning sent back": items(
        USER,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": "x"},
        USER,
        named="`reasoning`",
    ),
    "JSON": text_format(type="json_object"),
    "JSON by a schema": text_format(type="json_schema", name="a", schema=SCHEMA, strict=True),
    "Limit of tokens": of(max_output_tokens=5),
    "Stop strings": of(stop=["x"]),
    "Presence and frequency penalty": of(presence_penalty=0.5, frequency_penalty=0.5),
    "Usage of a stream": ALWAYS,
    "Streams that survive a connection": Sample(
        {"stream": True, "stream_options": {"resume_s": 5}}, "`stream_options.resume_s`"
    ),
    "Log-probabilities": of(include=["message.output_text.logprobs"], top_logprobs=2),
    "Verbosity": Sample({"text": {"verbosity": "low"}}, "`text.verbosity`"),
    "Labels of the client": ignored(user="x", metadata={"a": "b"}, safety_identifier="x"),
    "Prompts that are kept": of(prompt_cache_retention="24h"),
    "Hints for caches": ignored(prompt_cache_key="x", prompt_cache_retention="in_memory"),
    "Service tier": of(service_tier="flex"),
    "Priority among the requests of a key": of(priority=5),
}


def decoder() -> Decode:
    """The decoder, over a store with the response `EARLIER`. The request is repeated in its answer, labels included:
    what counts here is whether the answer is stored, and what else is in it."""
    service = ResponseService(GatewaySettings())

    async def found(raw: bytes) -> Decoded:
        assert service.store is not None
        await service.store.put(STORED)
        return await service.decode(raw, HeldBody(BodyBudget(1 << 30, 1)), b"")

    def decode(raw: bytes) -> Decoded:
        decoded = anyio.run(found, raw)
        assert isinstance(decoded.renderer, ResponseAnswer)
        stored = None if decoded.renderer.on_end is None else _on_end
        return decoded._replace(renderer=replace(decoded.renderer, echo=b"", on_end=stored))

    return decode


def _on_end(response: str, status: str, text: bytes) -> None:
    """Stands for the recording of any request."""


COLUMNS = (Column("`/v1/responses`", decoder, {"model": "tiny", "input": "hi"}, SAMPLES),)
