"""Errors name the fields of the client's own dialect, whichever field a worker or the gateway's core names."""

import json
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any, Union, get_args, get_origin

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import fields

from gateway.anthropic.field_names import NAMES as ANTHROPIC
from gateway.anthropic.schema import MessagesBody
from gateway.generation.field_names import FIELDS, WORKER_NAMES, FieldNames
from gateway.ollama.field_names import CHAT as OLLAMA_CHAT
from gateway.ollama.field_names import GENERATE as OLLAMA_GENERATE
from gateway.ollama.schema import OllamaChatBody, OllamaGenerateBody
from gateway.openai.field_names import CHAT, COMPLETION, QUERY
from gateway.openai.prompt_queries import TokenizeBody
from gateway.openai.schema import ChatBody, CompletionBody
from gateway.responses.request.field_names import NAMES as RESPONSES
from gateway.responses.request.schema import ResponsesBody
from protocol.errors import ErrorCode
from protocol.events import Failed, Tokenized
from tests.gateway.dialects.named_fields import bare, places, quoted
from tests.gateway.harness.serving import Served, serving

MESSAGES = [{"role": "user", "content": "hi"}]
TEXT = {"model": "tiny", "prompt": "hi"}
TALK = {"model": "tiny", "messages": MESSAGES}
DIALECTS: dict[str, tuple[FieldNames, type[Struct], dict[str, Any]]] = {
    "/v1/chat/completions": (FieldNames(CHAT), ChatBody, TALK),
    "/v1/completions": (FieldNames(COMPLETION), CompletionBody, TEXT),
    "/v1/responses": (RESPONSES, ResponsesBody, {"model": "tiny", "input": "hi"}),
    "/v1/messages": (ANTHROPIC, MessagesBody, TALK | {"max_tokens": 8}),
    "/api/chat": (OLLAMA_CHAT, OllamaChatBody, TALK),
    "/api/generate": (OLLAMA_GENERATE, OllamaGenerateBody, TEXT),
}
REFUSED = {("/api/chat", "logprobs"), ("/api/generate", "logprobs")}
"""Fields of a body that are refused, so that no worker gets them."""
pytestmark = pytest.mark.anyio


def test_every_field_that_a_worker_names_is_known() -> None:
    """`constraint` is the engine's own word, for which the output processor puts the field of the grammar, and `false`
    is a schema."""
    named = {name: place.at for place in places() for name in place.fields}
    named |= {name: place.at for place in places() for text in place.texts for name in quoted(text)}
    assert len(named) > 25
    assert {name: at for name, at in named.items() if name not in {*FIELDS, "constraint", "false"}} == {}


def test_texts_of_workers_have_names_of_fields_in_backticks() -> None:
    assert [(place.at, text) for place in places() for text in place.texts if bare(text)] == []


@pytest.mark.parametrize("path", DIALECTS)
def test_every_field_of_a_body_has_its_name_in_errors(path: str) -> None:
    """Each name is a field of the body, and a field without a name is none."""
    names, body, _ = DIALECTS[path]
    assert {own for own in names.names.values() if not at(body, own)} == set()
    unnamed = {given for given in FIELDS if not names.name(given) and at(body, given)}
    assert {(path, given) for given in unnamed - {"stream"}} <= REFUSED


def test_the_names_of_queries_are_fields_of_their_bodies() -> None:
    assert {own for own in QUERY.names if not at(TokenizeBody, own)} == {"tokens"}


def at(body: Any, path: str) -> bool:
    """The type of a body has a field at this path."""

    def step(types: list[Any], name: str) -> list[Any]:
        structs = [each for each in types if isinstance(each, type) and issubclass(each, Struct)]
        found = [field.type for struct in structs for field in fields(struct) if field.encode_name == name]
        return [part for each in found for part in (get_args(each) if _is_union(each) else [each])]

    return bool(reduce(step, path.split("."), [body]))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) is Union or type(kind).__name__ == "UnionType"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", DIALECTS)
async def test_a_clients_error_has_its_own_names(path: str, stream: bool) -> None:
    """For each field that a worker can name, before the answer and, if it is streamed, within it."""
    names, _, sample = DIALECTS[path]
    async with serving() as served:
        for count, field in enumerate(FIELDS, 1):
            seen = await failed(served, path, sample | {"stream": stream}, field, count, begun=stream)
            own = names.name(field)
            assert f"`{own or field}` is wrong; leave `{own or field}.x` and `x_{field}` out" in seen, (field, seen)
            for param in re.findall(r'"param":("[^"]*"|null)', seen):
                assert json.loads(param) == (own or None)


async def failed(served: Served, path: str, body: dict[str, Any], field: str, count: int, *, begun: bool) -> str:
    """The answer to a request that a worker fails because of a field."""
    text = f"`{field}` is wrong; leave `{field}.x` and `x_{field}` out"
    answering = anyio.Event()

    async def script() -> None:
        stream = (await served.worker.wait_submits(count))[-1].stream
        if begun:
            served.worker.token(stream, "He", 1)
            await answering.wait()
        served.worker.say(Failed(stream, ErrorCode.INVALID, text, field))

    parts = []
    async with anyio.create_task_group() as group:
        group.start_soon(script)
        async with served.client.stream("POST", path, json=body) as response:
            assert response.status_code == (200 if begun else 400)
            async for part in response.aiter_text():
                parts.append(part)
                answering.set()
    return "".join(parts)


QUERIES: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "/v1/messages/count_tokens": (TALK, "prompt", "messages"),
    "/tokenize": (TEXT, "prompt", "prompt"),
    "/detokenize": ({"model": "tiny", "tokens": [1]}, "tokens", "tokens"),
    "/apply-template": (TALK, "messages", "messages"),
}


@pytest.mark.parametrize("path", QUERIES)
async def test_the_error_of_a_query_has_the_clients_names(path: str) -> None:
    body, field, own = QUERIES[path]
    async with serving() as served, anyio.create_task_group() as group:

        async def script() -> None:
            (query,) = await served.worker.wait_queries(1)
            text = f"`{field}` is wrong"
            served.worker.say(Tokenized(query.query, text=text, code=ErrorCode.INVALID, field=field))

        group.start_soon(script)
        response = await served.client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"] == f"`{own}` is wrong"
    assert error.get("param", own) == own


@pytest.mark.parametrize(
    ("options", "field", "own"),
    [
        ({"max_completion_tokens": 8}, "max_tokens", "max_completion_tokens"),
        ({"n_predict": 8}, "max_tokens", "n_predict"),
        ({"reasoning_budget": 8}, "thinking_token_budget", "reasoning_budget"),
        ({"repeat_penalty": 1.1}, "repetition_penalty", "repeat_penalty"),
        ({"typ_p": 0.5}, "typical_p", "typ_p"),
        ({"dry_multiplier": 1, "dry_penalty_last_n": 5}, "dry_range", "dry_penalty_last_n"),
    ],
)
async def test_a_field_is_named_as_the_client_named_it(options: dict[str, Any], field: str, own: str) -> None:
    async with serving() as served:
        seen = json.loads(await failed(served, "/v1/chat/completions", TALK | options, field, 1, begun=False))
    assert seen["error"]["param"] == own
    assert seen["error"]["message"].startswith(f"`{own}` is wrong")


def test_what_is_no_field_of_a_worker_stays_as_it_is() -> None:
    error = ANTHROPIC.error(ErrorCode.INVALID, "`output_config.format.schema.properties`: no", "output_config.format")
    assert (error.text, error.field) == ("`output_config.format.schema.properties`: no", "output_config.format")
    error = RESPONSES.error(ErrorCode.INVALID, "messages: roles must alternate", "messages")
    assert (error.text, error.field) == ("messages: roles must alternate", "input")


def test_the_workers_own_names_are_the_default() -> None:
    assert [WORKER_NAMES.name(each) for each in FIELDS] == list(FIELDS)
