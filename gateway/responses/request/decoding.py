"""Decodes bodies of the Responses API, and turns them into generation requests."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.errors import RequestError, invalid
from gateway.generation.builder import RequestParameters, build_request, resumable_for, retention_pins, stop_strings
from gateway.generation.client_sampling import client_sampling
from gateway.generation.request import GenerationRequest, OutputOptions
from gateway.generation.template_time import template_time
from gateway.generation.unset_parameters import unset_parameters
from gateway.http.json_body import Hints, decode_body
from gateway.images.sources import GivenImage
from gateway.responses.items.conversation import MessageBuilder
from gateway.responses.items.input_schema import InputItem
from gateway.responses.request.field_names import NAMES
from gateway.responses.request.schema import (
    ENCRYPTED,
    LOGPROBS,
    ReasoningOptions,
    ResponsesBody,
    ResponsesStreamOptions,
)
from gateway.responses.request.text_format import decode_format, echo_format
from gateway.responses.request.tools import decode_tool_choice, decode_tools, echo_tools
from gateway.responses.unsupported import refuse_options, unsupported_kind
from gateway.settings import GatewaySettings
from protocol.request import ChatInput, Limits, Sampling, TemplateOptions

RANDOM_SEED = -1
"""A `seed` that asks for a random one, as in chats."""
HINTS = Hints(
    takes={
        "role": "system, developer, user or assistant",
        "truncation": "disabled; a conversation that is too long is refused",
        "service_tier": "auto or default",
        "verbosity": "medium",
        "effort": "none, minimal, low, medium, high or xhigh",
        "summary": "auto; the reasoning is reported whole",
        "generate_summary": "auto; the reasoning is reported whole",
        "context": "auto",
        "mode": "standard",
        "include": f"{LOGPROBS} and {ENCRYPTED}",
        "include_obfuscation": "false",
        "tool_choice": "none, auto, required or a function",
    },
    elsewhere={"messages": "/v1/chat/completions", "max_tokens": "/v1/chat/completions"},
)


class EarlierItem(NamedTuple):
    """An item of an earlier response, and the field by which the request refers to it."""

    item: InputItem
    field: str


class ResponsesDecoder:
    """Decodes bodies. Every refusal is a `RequestError` that names its field."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._decoder = msgspec.json.Decoder(ResponsesBody)

    def body(self, raw: bytes) -> ResponsesBody:
        """Decode a body, and refuse what is not supported."""
        try:
            body = decode_body(self._decoder, raw, HINTS)
        except RequestError as error:
            raise unsupported_kind(raw) or error from error
        refuse_options(body)
        if body.top_logprobs and LOGPROBS not in (body.include or ()):
            raise invalid("top_logprobs", f"`top_logprobs` goes with `include: [{LOGPROBS}]` only")
        options = body.stream_options or ResponsesStreamOptions()
        if options.resume_s and not body.stream:
            raise invalid("stream_options.resume_s", "`stream_options.resume_s` goes with `stream: true` only")
        return body

    def request(
        self, body: ResponsesBody, items: Sequence[EarlierItem], *, size: int
    ) -> tuple[GenerationRequest, tuple[GivenImage, ...]]:
        """The request for the answer to `items`, the whole conversation, and its images. `size`: the bytes of the
        body."""
        conversation = MessageBuilder(body.instructions)
        for item, field in items:
            conversation.add(item, field)
        messages = conversation.messages("input")
        grammar = decode_format(None if body.text is None else body.text.format)
        choice = decode_tool_choice(body)
        chat = ChatInput(
            messages,
            decode_tools(body.tools or ()),
            template_time(),
            _template_options(body.reasoning),
            choice,
            parse_tools=bool(body.tools) and choice.mode != "none",
            parse_reasoning=True,
            pins=retention_pins(body.prompt_cache_retention, len(messages)),
        )
        logprobs = (body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None
        options = body.stream_options or ResponsesStreamOptions()
        output = OutputOptions(
            stream=bool(body.stream or body.background),
            with_tokens=logprobs is not None,
            limit_field=NAMES.name("max_tokens"),
            fields=NAMES,
            resume_s=resumable_for(self._settings, options.resume_s or 0.0, "stream_options.resume_s"),
            kept=True,
        )
        wanted = RequestParameters(
            model=body.model or "",
            inputs=[chat],
            sampling=_sampling(body, logprobs),
            limits=Limits(
                max_tokens=body.max_output_tokens,
                stop=stop_strings(body.stop),
                speculate=body.speculate is not False,
                sparse_prefill=body.sparse_prefill,
                sparse_keep=body.sparse_prefill_keep,
            ),
            output=output,
            seed=None if body.seed == RANDOM_SEED else body.seed,
            cache_salt=body.cache_salt or "",
            grammar=grammar,
            unset=unset_parameters(body),
        )
        return build_request(self._settings, wanted, size), conversation.images.found


def own_items(body: ResponsesBody) -> list[EarlierItem]:
    """The items of the body itself, each with its path."""
    if isinstance(body.input, str):
        return [EarlierItem(InputItem(type="message", role="user", content=body.input), "input")]
    return [EarlierItem(item, f"input[{index}]") for index, item in enumerate(body.input)]


def echo(body: ResponsesBody, *, stored: bool) -> bytes:
    """The fields of a response that repeat its request, as a JSON object. A sampling parameter that is not set is the
    checkpoint's, and null here."""
    text, reasoning = body.text, body.reasoning
    fields: dict[str, Any] = {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": stored,
        "temperature": body.temperature,
        "text": {"format": echo_format(None if text is None else text.format), "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": echo_tools(body.tools or ()),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
    return msgspec.json.encode(fields)


def _template_options(reasoning: ReasoningOptions | None) -> TemplateOptions:
    """The variables of templates that stand for an effort of reasoning. As in chats, `none` is also a switch, which
    most templates have instead of an effort; other efforts leave the switch as the template has it."""
    effort = None if reasoning is None else reasoning.effort
    thinks = False if effort == "none" else None
    return TemplateOptions(enable_thinking=thinks, thinking=thinks, reasoning_effort=effort)


def _sampling(body: ResponsesBody, logprobs: int | None) -> Sampling:
    """The sampling, without its seed."""
    return client_sampling(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logprobs=logprobs,
    )
