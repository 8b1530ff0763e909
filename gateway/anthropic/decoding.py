"""Decodes bodies into typed structs, and turns them into generation requests."""

import re
from typing import Any

import msgspec

from gateway.anthropic.answer import MessageAnswer
from gateway.anthropic.cache_marks import CacheMarks
from gateway.anthropic.conversation import prompt_messages
from gateway.anthropic.field_names import NAMES
from gateway.anthropic.schema import (
    AnyChoice,
    AutoChoice,
    Choice,
    ClientTool,
    CountBody,
    JsonFormat,
    MessagesBody,
    NamedChoice,
    NoneChoice,
    ThinkingDisabled,
    ThinkingEnabled,
)
from gateway.anthropic.unsupported import refuse_unsupported
from gateway.errors import RequestError, invalid
from gateway.generation.builder import RequestParameters, build_request, resumable_for
from gateway.generation.client_sampling import client_sampling
from gateway.generation.grammar import json_schema_grammar
from gateway.generation.prompt_query import PromptQuery
from gateway.generation.request import OutputOptions
from gateway.generation.template_time import template_time
from gateway.generation.tools import ToolDefinition, encode_tools
from gateway.generation.unset_parameters import unset_parameters
from gateway.http.json_body import Hints, decode_body
from gateway.images.sources import GivenImages
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded, DecodedQuery
from protocol.errors import ErrorCode
from protocol.events import Tokenized
from protocol.request import ChatInput, Grammar, Limits, TemplateOptions, ToolChoice

HINTS = Hints(takes={"role": "user, assistant or system", "source.type": "base64 or url, as there are no files here"})
_TYPED = re.compile(r"(tools|messages\[\d+\]\.content(?:\[\d+\]\.content)?|system)\[(\d+)\]")
"""The path of an element that has a type, at the beginning of a field's path."""


class MessagesDecoder:
    """Decodes the bodies of the Messages API. Every refusal is a `RequestError` that names its field."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._messages = msgspec.json.Decoder(MessagesBody)
        self._count = msgspec.json.Decoder(CountBody)

    def messages(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/messages`."""
        body = _decoded(self._messages, raw)
        images = GivenImages()
        chat = chat_input(body, images)
        if body.messages[-1].role == "assistant":
            at = f"messages[{len(body.messages) - 1}].role"
            text = f"`{at}`: an answer of the assistant cannot be continued; end with a message of the user"
            raise invalid(at, text, ErrorCode.UNSUPPORTED)
        if body.resume_s and not body.stream:
            raise invalid("resume_s", "`resume_s` goes with `stream: true` only")
        thinking = body.thinking
        budget = thinking.budget_tokens if isinstance(thinking, ThinkingEnabled) else None
        if budget is not None and budget >= body.max_tokens:
            raise invalid("thinking.budget_tokens", "`thinking.budget_tokens` must be less than `max_tokens`")
        wanted = RequestParameters(
            model=body.model or "",
            inputs=[chat],
            sampling=client_sampling(temperature=body.temperature, top_k=body.top_k, top_p=body.top_p),
            limits=Limits(
                max_tokens=body.max_tokens,
                stop=body.stop_sequences or (),
                reasoning_tokens=budget,
                reasoning_optional=budget is not None,
                speculate=body.speculate is not False,
                sparse_prefill=body.sparse_prefill,
                sparse_keep=body.sparse_prefill_keep,
            ),
            output=OutputOptions(
                stream=bool(body.stream),
                resume_s=resumable_for(self._settings, body.resume_s or 0.0, "resume_s"),
                fields=NAMES,
            ),
            seed=body.seed,
            cache_salt=body.cache_salt or "",
            grammar=_grammar(body),
            unset=unset_parameters(body),
        )
        omitted = not isinstance(thinking, ThinkingDisabled) and thinking is not None and thinking.display == "omitted"
        answer = MessageAnswer(max_tokens=body.max_tokens, omit_thinking=omitted)
        return Decoded(build_request(self._settings, wanted, len(raw)), answer, images=images.found)

    def count(self, raw: bytes) -> DecodedQuery:
        """Decode a body of `/v1/messages/count_tokens`."""
        body = _decoded(self._count, raw)
        images = GivenImages()
        return DecodedQuery(PromptQuery(body.model or "", chat_input(body, images), fields=NAMES), _count, images.found)


def _count(answer: Tokenized, _: int | None) -> bytes:
    return msgspec.json.encode({"input_tokens": answer.count})


def chat_input(body: CountBody, images: GivenImages) -> ChatInput:
    """The prompt of a body, whose images are added to `images`. Raises `RequestError`."""
    refuse_unsupported(body)
    if body.output_config is not None:
        refuse_unsupported(body.output_config, "output_config.")
    tools = body.tools or ()
    paths = [f"tools[{index}]" for index in range(len(tools))]
    definitions = [_definition(tool, path) for tool, path in zip(tools, paths, strict=True)]
    choice = _tool_choice(body.tool_choice, {tool.name for tool in tools})
    marks = CacheMarks()
    messages = prompt_messages(body, marks, images)
    return ChatInput(
        messages,
        encode_tools(definitions, paths, "input_schema"),
        now=template_time(),
        options=_options(body),
        tool_choice=choice,
        parse_tools=bool(tools) and choice.mode != "none",
        parse_reasoning=True,
        pins=marks.pins(),
    )


def _decoded(decoder: "msgspec.json.Decoder[Any]", raw: bytes) -> Any:
    try:
        return decode_body(decoder, raw, HINTS)
    except RequestError as error:
        raise _of_foreign_type(raw, error) or error from error


def _of_foreign_type(raw: bytes, error: RequestError) -> RequestError | None:
    """The refusal of a tool or block by its type, of which the decoder names only a field."""
    found = _TYPED.match(error.field or "")
    if found is None:
        return None
    try:
        element = _at(msgspec.json.decode(raw), found.group())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None  # the rest of the body is not JSON, or has a field of the path once more
    kind = element.get("type") if isinstance(element, dict) else None
    if not isinstance(kind, str):
        return None
    at, known = found.group(), kind[:64]
    if found.group(1) == "tools":
        if kind == "custom":
            return None
        text = f"`{at}`: tools of the type `{known}` are not supported; describe one with `name` and `input_schema`"
    elif error.field == f"{at}.type":
        text = f"`{at}`: blocks of the type `{known}` are not supported"
    else:
        return None
    return RequestError(ErrorCode.UNSUPPORTED, text, field=at)


def _at(document: Any, path: str) -> Any:
    for step in re.findall(r"\w+", path):
        document = document[int(step) if isinstance(document, list) else step]
    return document


def _definition(tool: ClientTool, at: str) -> ToolDefinition:
    refuse_unsupported(tool, f"{at}.")
    return ToolDefinition(tool.name, tool.description or "", tool.input_schema, bool(tool.strict))


def _tool_choice(choice: Choice | None, names: set[str]) -> ToolChoice:
    if isinstance(choice, AnyChoice | NamedChoice) and not names:
        raise invalid("tool_choice", "`tool_choice` asks for a call, but there are no `tools`")
    match choice:
        case None | AutoChoice():
            return ToolChoice("auto", parallel=not (choice and choice.disable_parallel_tool_use))
        case AnyChoice():
            return ToolChoice("required", parallel=not choice.disable_parallel_tool_use)
        case NamedChoice(name=name):
            if name not in names:
                raise invalid("tool_choice.name", "`tool_choice.name` is the name of none of the `tools`")
            return ToolChoice("required", name, parallel=not choice.disable_parallel_tool_use)
        case NoneChoice():
            return ToolChoice("none")


def _options(body: CountBody) -> TemplateOptions:
    """The variables of the chat template that ask for thinking, under all of their names."""
    effort = body.output_config.effort if body.output_config is not None else None
    reasoning_effort = "xhigh" if effort == "max" else effort
    match body.thinking:
        case ThinkingEnabled(budget_tokens=budget):
            return TemplateOptions(True, True, budget, reasoning_effort)
        case ThinkingDisabled():
            return TemplateOptions(False, False, None, reasoning_effort)
        case _:
            return TemplateOptions(reasoning_effort=reasoning_effort)


def _grammar(body: MessagesBody) -> Grammar | None:
    """The grammar of the answer. Clients of earlier versions send it as `output_format`."""
    config = body.output_config
    wanted: dict[str, JsonFormat] = {}
    if config is not None and config.format is not None:
        wanted["output_config.format"] = config.format
    if body.output_format is not None:
        wanted["output_format"] = body.output_format
    if len(wanted) > 1 and body.output_format != wanted["output_config.format"]:
        raise invalid("output_format", "`output_format` and `output_config.format` differ; send one of them")
    for at, given in wanted.items():
        return json_schema_grammar(given.schema, f"{at}.schema")
    return None
