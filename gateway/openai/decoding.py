"""Decodes bodies into typed structs, and turns them into generation requests."""

import msgspec

from gateway.errors import invalid
from gateway.generation.builder import RequestParameters, build_request, resumable_for, retention_pins, stop_strings
from gateway.generation.request import OutputOptions
from gateway.generation.template_time import template_time
from gateway.generation.unset_parameters import unset_parameters
from gateway.http.json_body import Hints, decode_body
from gateway.images.sources import GivenImages
from gateway.openai.answer import OpenAIAnswer
from gateway.openai.chat.messages import decode_messages
from gateway.openai.chat.reasoning import template_options
from gateway.openai.chat.tools import offered_tools
from gateway.openai.completions.fields import best_of, completion_inputs, prompt_field, prompt_logprobs
from gateway.openai.field_names import LIMIT_NAMES, REASONING_LIMIT_NAMES, field_names, one_of
from gateway.openai.sampling import sampling_of
from gateway.openai.schema import ChatBody, CompletionBody, StreamOptions
from gateway.openai.structured import grammar_of
from gateway.openai.unsupported import refuse_set
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded
from protocol.bounds import MAX_TOP_LOGPROBS
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Input, Limits

COMPLETION_MAX_TOKENS = 16
"""The default of OpenAI's completions endpoint."""
NO_LIMIT = -1
"""A `max_tokens` that allows the rest of the context, as with llama.cpp and LM Studio."""
RANDOM_SEED = -1
"""A `seed` that asks for a random one, as with llama.cpp and vLLM."""

CHAT_FIELDS = (
    "messages",
    "max_completion_tokens",
    "chat_template_kwargs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "enable_thinking",
)
"""Fields that a completion does not have."""

HINTS = Hints(
    takes={
        "role": "system, developer, user, assistant or tool",
        "content.type": "text or image_url",
        "image_url.detail": "auto, low or high",
        "response_format.type": "text, json_object or json_schema",
        "tools.type": "function, the only kind of tool here",
        "tool_calls.type": "function, the only kind of tool call here",
        "tool_choice": "auto, none, required or an object that names a tool",
        "tool_choice.type": "function or allowed_tools",
        "mode": "auto or required",
        "reasoning_effort": "none, minimal, low, medium, high or xhigh",
        "logprobs": f"a number from 0 to {MAX_TOP_LOGPROBS}",
        "include_obfuscation": "false",
    },
    elsewhere={"prompt": "/v1/completions"} | dict.fromkeys(CHAT_FIELDS, "/v1/chat/completions"),
)


class RequestDecoder:
    """Decodes the bodies of the two endpoints. Every refusal is a `RequestError` that names its field."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._completion = msgspec.json.Decoder(CompletionBody)
        self._chat = msgspec.json.Decoder(ChatBody)

    def completion(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/completions`."""
        body = decode_body(self._completion, raw, HINTS)
        refuse_set(body)
        prompts = completion_inputs(body)
        limit = _limit(body, default=COMPLETION_MAX_TOKENS)
        top = None if body.logprobs is False else body.logprobs
        return self._decoded(body, prompts, limit, top, size=len(raw))

    def chat(self, raw: bytes) -> Decoded:
        """Decode a body of `/v1/chat/completions`."""
        body = decode_body(self._chat, raw, HINTS)
        refuse_set(body)
        limit = _limit(body, default=NO_LIMIT)
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs", "`top_logprobs` goes with `logprobs: true` only")
        top = (body.top_logprobs or 0) if body.logprobs else None
        images = GivenImages()
        decoded = self._decoded(body, [chat_input(body, images)], limit, top, size=len(raw))
        return decoded._replace(images=images.found)

    def _decoded(
        self, body: CompletionBody | ChatBody, inputs: list[Input], limit: int | None, top: int | None, *, size: int
    ) -> Decoded:
        options = body.stream_options or StreamOptions()
        refuse_set(options, "stream_options.")
        if options.resume_s and not body.stream:
            raise invalid("stream_options.resume_s", "`stream_options.resume_s` goes with `stream: true` only")
        if limit is not None and (body.min_tokens or 0) > limit:
            raise invalid("min_tokens", f"`min_tokens` is over the {limit} tokens that are generated at most")
        candidates, echo = best_of(body), isinstance(body, CompletionBody) and bool(body.echo)
        n = body.n or 1
        answer = OpenAIAnswer(
            chat=isinstance(body, ChatBody),
            include_usage=bool(options.include_usage),
            token_ids=bool(body.return_token_ids),
            logprobs=top is not None,
            include_reasoning=not isinstance(body, ChatBody) or body.include_reasoning is not False,
            top=top or 0,
            echo=echo,
            prompt_logprobs=body.prompt_logprobs,
            best_of=candidates,
            n=None if candidates == n else n,
        )
        fields = field_names(body, n="n" if candidates == n else "best_of", prompt_logprobs=prompt_field(body, top))
        output = OutputOptions(
            stream=bool(body.stream),
            per_prompt=candidates,
            with_tokens=answer.token_ids or answer.logprobs,
            limit_field=fields.name("max_tokens"),
            fields=fields,
            prompt_field=fields.name("prompt_logprobs"),
            resume_s=resumable_for(self._settings, options.resume_s or 0.0, "stream_options.resume_s"),
        )
        wanted = RequestParameters(
            model=body.model or "",
            inputs=inputs,
            # Candidates are compared by the log-probabilities of their tokens.
            sampling=sampling_of(body, 0 if top is None and candidates > n else top),
            limits=Limits(
                max_tokens=limit,
                stop=stop_strings(body.stop),
                ignore_eos=bool(body.ignore_eos),
                min_tokens=body.min_tokens or 0,
                stop_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
                keep_stop=bool(body.include_stop_str_in_output),
                reasoning_tokens=_reasoning_limit(body),
                speculate=body.speculate is not False,
                sparse_prefill=body.sparse_prefill,
                sparse_keep=body.sparse_prefill_keep,
            ),
            output=output,
            seed=None if body.seed == RANDOM_SEED else body.seed,
            cache_salt=body.cache_salt or "",
            priority=self._priority(body),
            grammar=grammar_of(body),
            unset=unset_parameters(body),
            prompt_logprobs=prompt_logprobs(body, inputs, top),
            echo=echo,
            shared=isinstance(body, CompletionBody) and bool(body.suffix),
        )
        return Decoded(build_request(self._settings, wanted, size), answer)

    def _priority(self, body: CompletionBody | ChatBody) -> int:
        """The priority of a request. Raises `RequestError` for one that would have no effect."""
        if body.priority and self._settings.scheduler_policy != "priority":
            text = "`priority` has an effect only on a server with `--scheduler-policy priority`"
            raise invalid("priority", text, ErrorCode.UNSUPPORTED)
        return body.priority or 0


def chat_input(body: ChatBody, images: GivenImages) -> ChatInput:
    """The prompt of a chat completion, whose images are added to `images`. Raises `RequestError` naming the field."""
    tools, messages = offered_tools(body), decode_messages(body.messages, images)
    return ChatInput(
        messages,
        tools.json,
        template_time(),
        template_options(body),
        tools.choice,
        parse_tools=tools.parsed,
        parse_reasoning=body.reasoning_format != "none",
        pins=retention_pins(body.prompt_cache_retention, len(messages)),
    )


def _limit(body: CompletionBody | ChatBody, default: int) -> int | None:
    """The most tokens to generate, in whichever of its names it was given; None is the rest of the context."""
    name, limit = one_of(body, *LIMIT_NAMES)
    if limit == 0 and isinstance(body, ChatBody):
        raise invalid(name, f"`{name}` is 1 and up, or {NO_LIMIT} for no limit")
    chosen = default if limit is None else limit
    return None if chosen == NO_LIMIT else chosen


def _reasoning_limit(body: CompletionBody | ChatBody) -> int | None:
    """The most tokens of reasoning, in whichever of its names it was given; None is no limit of its own."""
    _, limit = one_of(body, *REASONING_LIMIT_NAMES)
    return None if limit == NO_LIMIT else limit
