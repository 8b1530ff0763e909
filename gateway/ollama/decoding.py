"""Decodes bodies into typed structs, and turns them into generation requests."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from gateway.errors import invalid
from gateway.generation.builder import RequestParameters, build_request, stop_strings
from gateway.generation.client_sampling import client_sampling
from gateway.generation.grammar import json_schema_grammar
from gateway.generation.request import OutputOptions
from gateway.generation.template_time import template_time
from gateway.generation.tools import PastCalls, ToolDefinition, encode_tools
from gateway.generation.unset_parameters import unset_parameters
from gateway.http.json_body import Hints, decode_body
from gateway.images.sources import GivenImages
from gateway.ollama.answer import OllamaAnswer
from gateway.ollama.field_names import CHAT, GENERATE
from gateway.ollama.residence import ModelResidence, keep_alive_s
from gateway.ollama.schema import ModelOptions, OllamaChatBody, OllamaGenerateBody, OllamaMessage, OllamaTool, Think
from gateway.ollama.unsupported import refuse_unsupported
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnsweredAtOnce, Decoded
from protocol.request import (
    ChatInput,
    Grammar,
    ImagePlace,
    InfillInput,
    Input,
    Limits,
    Message,
    Sampling,
    TemplateOptions,
    TextInput,
    ToolCall,
)

LATEST = ":latest"
"""The tag that clients add to a name without one."""
RANDOM_SEED = -1
HINTS = Hints(takes={"role": "system, user, assistant or tool", "think": "true, false, low, medium, high or max"})


class OllamaDecoder:
    """Decodes the bodies of the two endpoints. Every refusal is a `RequestError` that names its field."""

    def __init__(self, router: Router, settings: GatewaySettings, residence: ModelResidence | None = None) -> None:
        self._router = router
        self._settings = settings
        self._residence = residence or ModelResidence(None, settings)
        self._chat = msgspec.json.Decoder(OllamaChatBody)
        self._generate = msgspec.json.Decoder(OllamaGenerateBody)

    def chat(self, raw: bytes) -> Decoded | AnsweredAtOnce:
        """Decode a body of `/api/chat`."""
        body = decode_body(self._chat, raw, HINTS)
        if not body.messages:
            return self._loaded(body)
        tools = body.tools or ()
        paths = [f"tools[{index}].function" for index in range(len(tools))]
        images = GivenImages()
        made = ChatInput(
            _messages(body.messages, images),
            encode_tools([_definition(tool) for tool in tools], paths),
            now=template_time(),
            options=_template_options(body.think),
            parse_tools=bool(tools),
            parse_reasoning=True,
        )
        return self._decoded(body, made, len(raw))._replace(images=images.found)

    def generate(self, raw: bytes) -> Decoded | AnsweredAtOnce:
        """Decode a body of `/api/generate`."""
        body = decode_body(self._generate, raw, HINTS)
        if not body.prompt:
            if body.suffix:
                raise invalid("suffix", "`suffix` goes with a `prompt`: the answer is between both")
            return self._loaded(body)
        if body.suffix:
            for name in ("raw", "system", "images", "think"):
                if getattr(body, name):
                    raise invalid(name, f"`{name}` and `suffix` exclude each other: there is no chat around the gap")
            return self._decoded(body, InfillInput(body.prompt, body.suffix), len(raw))
        if body.raw:
            if body.system:
                raise invalid("system", "`system` has no place in a `raw` prompt; write it into the prompt")
            if body.images:
                raise invalid("images", "`images` have no place in a `raw` prompt")
            return self._decoded(body, TextInput(body.prompt), len(raw))
        system = (Message("system", body.system),) if body.system else ()
        images = GivenImages()
        messages = (*system, Message("user", body.prompt, images=_places(body.images, "images", images)))
        made = ChatInput(messages, now=template_time(), options=_template_options(body.think), parse_reasoning=True)
        return self._decoded(body, made, len(raw))._replace(images=images.found)

    def _loaded(self, body: OllamaChatBody | OllamaGenerateBody) -> AnsweredAtOnce:
        """The answer to a body that asks for its model to be loaded, or with a `keep_alive` of 0 to be unloaded."""
        refuse_unsupported(body)
        keep_s = keep_alive_s(body.keep_alive)
        model = self._router.models.canonical(model_named(self._router, body.model))
        answer = OllamaAnswer(model=body.model, chat=isinstance(body, OllamaChatBody))
        end = {"done": True, "done_reason": "unload" if keep_s == 0 else "load"}
        first = partial(self._residence.change, model, keep_s)
        return AnsweredAtOnce(answer.line(int(time.time()), [], end), model, first)

    def _decoded(self, body: OllamaChatBody | OllamaGenerateBody, made: Input, size: int) -> Decoded:
        refuse_unsupported(body)
        options = body.options or ModelOptions()
        refuse_unsupported(options, "options.")
        named, keep_s = model_named(self._router, body.model), keep_alive_s(body.keep_alive)
        model = self._router.models.canonical(named)
        limit = options.num_predict
        if limit == 0:
            raise invalid("options.num_predict", "`options.num_predict` is 1 and up, or -1 for no limit")
        wanted = RequestParameters(
            model=named,
            inputs=[made],
            sampling=_sampling(options),
            limits=Limits(
                max_tokens=limit if limit is not None and limit > 0 else None,
                stop=stop_strings(options.stop),
                speculate=options.speculate is not False,
                sparse_prefill=options.sparse_prefill,
                sparse_keep=options.sparse_prefill_keep,
            ),
            output=OutputOptions(
                stream=body.stream is not False,
                limit_field="options.num_predict",
                kept=isinstance(made, ChatInput) and made.parse_tools,  # a call is kept until it is whole
                fields=CHAT if isinstance(body, OllamaChatBody) else GENERATE,
            ),
            seed=None if options.seed == RANDOM_SEED else options.seed,
            grammar=_grammar(body.format),
            unset=unset_parameters(options),
        )
        answer = OllamaAnswer(model=body.model, chat=isinstance(body, OllamaChatBody))
        admitted = None if keep_s is None else partial(self._residence.keep, model, keep_s)
        return Decoded(build_request(self._settings, wanted, size), answer, admitted=admitted)


def model_named(router: Router, name: str) -> str:
    """The own name of the model of this name or alias, or the name of an adapter, with or without the tag that clients
    add to it."""
    for adapter in (name, name.removesuffix(LATEST)):
        if router.pool.parent(adapter) is not None:
            return adapter
    names, own = router.models.names(), router.models.canonical(name)
    without = router.models.canonical(name.removesuffix(LATEST))
    return without if own not in names and without in names else own


def _places(given: Sequence[str] | None, at: str, images: GivenImages) -> tuple[ImagePlace, ...]:
    """Add the images of a message to `images`. They come before its text, as in Ollama."""
    return tuple(ImagePlace(images.add_base64(data, f"{at}[{index}]"), 0) for index, data in enumerate(given or ()))


def _messages(messages: Sequence[OllamaMessage], images: GivenImages) -> tuple[Message, ...]:
    """The messages, whose images are added to `images`. A result belongs to the call that it names by id or by tool, or
    else to the first without one."""
    made: list[Message] = []
    waiting: deque[ToolCall] = deque()
    past = PastCalls()
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        refuse_unsupported(message, f"{at}.")
        if message.role != "assistant" and (message.tool_calls or message.thinking):
            name = "tool_calls" if message.tool_calls else "thinking"
            raise invalid(f"{at}.{name}", f"`{at}.{name}`: only messages of the assistant have it")
        calls = tuple(
            _call(past, message, each, f"{at}.tool_calls[{each}]", index)
            for each in range(len(message.tool_calls or ()))
        )
        waiting.extend(calls)
        answers = _answered(message, waiting) if message.role == "tool" else ""
        made.append(
            Message(
                message.role,
                message.content or "",
                tool_calls=calls,
                tool_call_id=answers,
                reasoning=message.thinking or "",
                images=_places(message.images, f"{at}.images", images),
            )
        )
    return tuple(made)


def _call(past: PastCalls, message: OllamaMessage, position: int, at: str, index: int) -> ToolCall:
    given = (message.tool_calls or ())[position]
    ident, function = given.id or f"call_{index}_{position}", given.function
    return past.of_object(ident, function.name, function.arguments, f"{at}.function.arguments")


def _answered(message: OllamaMessage, waiting: deque[ToolCall]) -> str:
    """The id of the call that a result answers; empty if there is none."""
    if message.tool_call_id:
        found = next((call for call in waiting if call.id == message.tool_call_id), None)
        if found is not None:
            waiting.remove(found)
        return message.tool_call_id
    of_name = (call for call in waiting if message.tool_name in (None, "", call.name))
    found = next(of_name, waiting[0] if waiting else None)
    if found is None:
        return ""
    waiting.remove(found)
    return found.id


def _definition(tool: OllamaTool) -> ToolDefinition:
    function = tool.function
    return ToolDefinition(function.name, function.description or "", function.parameters, bool(function.strict))


def _template_options(think: Think | None) -> TemplateOptions:
    """The variables of the chat template that ask for thinking, under all of their names."""
    if think is None or isinstance(think, bool):
        return TemplateOptions(think, think)
    return TemplateOptions(True, True, None, "xhigh" if think == "max" else think)


def _grammar(wanted: Any) -> Grammar | None:
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return Grammar("json_object", field="format")
    if not isinstance(wanted, Mapping):
        raise invalid("format", '`format` takes "json" or a JSON schema')
    return json_schema_grammar(wanted, "format")


def _sampling(options: ModelOptions) -> Sampling:
    """The sampling, without its seed. As in Ollama, 0 for `top_p` or `typical_p` switches it off."""
    return client_sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p or None,
        min_p=options.min_p,
        typical_p=options.typical_p or None,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repeat_penalty,
    )
