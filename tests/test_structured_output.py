"""Structured output with the built-in model, a real backend and the real `openai` package."""

import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import anyio
import httpx
import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel, Field

from tests.cli.commands.test_serve import read_until, serving, url_of

MODEL = "baton-tiny"


class Address(BaseModel):
    street: str = Field(max_length=20)
    number: int = Field(ge=1, le=99)


class Person(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["friend", "colleague"]
    active: bool
    address: Address | None
    tags: list[Literal["a", "b", "c"]] = Field(max_length=3)


@pytest.fixture(scope="module", params=["iree", "mlx"])
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    pytest.importorskip({"iree": "iree.runtime", "mlx": "mlx.core"}[request.param])
    words = ["-m", "cli", "serve", "--port", "0", "--backend", request.param]
    with serving(words) as process:
        url = url_of(read_until(process, "ready"))
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=100) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def messages(text: str = "Describe a person.") -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("seed", range(3))
def test_parse_returns_an_object_of_the_model(client: openai.OpenAI, seed: int) -> None:
    found = client.chat.completions.parse(
        model=MODEL, messages=messages(), response_format=Person, max_completion_tokens=300, temperature=1, seed=seed
    )
    assert found.choices[0].finish_reason == "stop"
    assert isinstance(found.choices[0].message.parsed, Person)


def test_a_stream_is_parsed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=messages(), response_format=Person, max_completion_tokens=300, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        found = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert isinstance(found.choices[0].message.parsed, Person)


@pytest.fixture
async def async_client(client: openai.OpenAI) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0, timeout=100) as found:
        yield found


@pytest.mark.anyio
async def test_the_async_client_parses_answers_beside_each_other(async_client: openai.AsyncOpenAI) -> None:
    found: list[Any] = [None] * 6

    async def ask(seed: int) -> None:
        found[seed] = await async_client.chat.completions.parse(
            model=MODEL,
            messages=messages(),
            response_format=Person if seed % 2 else Address,
            max_completion_tokens=300,
            temperature=1,
            seed=seed,
        )

    async with anyio.create_task_group() as tasks:
        for seed in range(len(found)):
            tasks.start_soon(ask, seed)
    for seed, each in enumerate(found):
        assert each.choices[0].finish_reason == "stop"
        assert isinstance(each.choices[0].message.parsed, Person if seed % 2 else Address)


@pytest.mark.anyio
async def test_the_async_client_parses_a_stream(async_client: openai.AsyncOpenAI) -> None:
    kinds, partial, text = set(), [], ""
    async with async_client.chat.completions.stream(
        model=MODEL, messages=messages(), response_format=Person, max_completion_tokens=300, temperature=0
    ) as stream:
        async for event in stream:
            kinds.add(event.type)
            if event.type == "content.delta":
                text += event.delta
                partial.append(event.parsed)
        found = await stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    parsed = found.choices[0].message.parsed
    assert isinstance(parsed, Person)
    assert Person.model_validate_json(text) == parsed
    assert partial[-1] == parsed.model_dump(), "the helper parses what has come so far"


@pytest.mark.anyio
async def test_the_async_client_shows_why_a_schema_is_refused(async_client: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string", "format": "moon-phase"}}}
    with pytest.raises(openai.BadRequestError, match=r"json_schema\.schema\.properties\.when"):
        await async_client.chat.completions.create(
            model=MODEL,
            messages=messages(),
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )


def test_an_answer_that_max_tokens_ends_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=messages(), response_format=Person, max_completion_tokens=3, temperature=0
        )


def test_a_json_object(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL, messages=messages("Answer in JSON."), response_format={"type": "json_object"}, max_tokens=400, n=4
    )
    ended = [choice for choice in found.choices if choice.finish_reason == "stop"]
    for choice in ended:
        assert isinstance(json.loads(choice.message.content or ""), dict)


SCHEMAS: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "null"}, {"const": {"a": [1, 'é\n"quoted"']}}, {"type": "boolean"}]},
    {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"}},
        "required": ["day", "id"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "value": {"enum": [1, "two", None]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    },
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    {"type": "number", "minimum": 0.5, "maximum": 2.5, "x-guidance": {"whitespace_flexible": False}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_what_ends_by_itself_validates(client: openai.OpenAI, schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    ended = 0
    for temperature in (0, 1):
        found = client.completions.create(
            model=MODEL,
            prompt="The value is ",
            max_tokens=200,
            temperature=temperature,
            seed=7,
            n=4,
            extra_body={"guided_json": schema},
        )
        for choice in found.choices:
            if choice.finish_reason == "stop":
                ended += 1
                validator.validate(json.loads(choice.text))
    assert ended


def test_choices_and_regular_expressions(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL, messages=messages("Is 2 even?"), extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert found.choices[0].message.content in ("yes", "no")
    found = client.chat.completions.create(
        model=MODEL, messages=messages("A code?"), extra_body={"guided_regex": "[A-F]{4}-[0-9]{2}"}, n=2
    )
    for choice in found.choices:
        assert choice.message.content is not None
        assert len(choice.message.content) == 7


def test_a_bad_schema_says_where(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"when": {"type": "string", "format": "moon-phase"}}}
    with pytest.raises(openai.BadRequestError, match=r"json_schema\.schema\.properties\.when") as refused:
        client.chat.completions.create(
            model=MODEL,
            messages=messages(),
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    assert refused.value.param == "response_format.json_schema.schema"
    assert refused.value.code == "invalid_request"


NUMBERS = {"type": "array", "items": {"enum": ["one", "two", 3]}, "minItems": 90, "maxItems": 90}


def streamed(client: openai.OpenAI, seed: int, on_chunk: Callable[[int], None] = lambda count: None) -> tuple[str, str]:
    """The text and the finish reason of a constrained stream. `on_chunk` is called with the number of chunks so far."""
    body = {"model": MODEL, "prompt": f"Numbers {seed}: ", "max_tokens": 800, "temperature": 1, "seed": seed}
    text, reason, count = "", "", 0
    wanted = body | {"stream": True, "guided_json": NUMBERS}
    with httpx.stream("POST", f"{client.base_url}completions", json=wanted, timeout=100) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            on_chunk(count := count + 1)
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            text += choice["text"]
            reason = choice["finish_reason"] or reason
    return text, reason


def test_constrained_streams_survive_the_death_of_the_worker(client: openai.OpenAI) -> None:
    admin = str(client.base_url).removesuffix("v1/").rstrip("/")
    (before,) = httpx.get(f"{admin}/admin/workers").json()["workers"]
    kill = threading.Lock()

    def kill_once(count: int) -> None:
        # At the first chunk of any stream: on a busy machine, all of its tokens may come in a few.
        if kill.acquire(blocking=False):
            os.kill(before["pid"], signal.SIGKILL)

    with ThreadPoolExecutor(6) as pool:
        whole = [*pool.map(lambda seed: streamed(client, seed), range(6))]
        again = [*pool.map(lambda seed: streamed(client, seed, kill_once), range(6))]
    assert kill.locked()
    assert again == whole
    for text, reason in whole:
        assert reason == "stop"
        assert len(json.loads(text)) == 90
    deadline = time.monotonic() + 60
    incarnation = before["incarnation"]
    while incarnation == before["incarnation"] and time.monotonic() < deadline:  # if all had been sent when it died
        (after,) = httpx.get(f"{admin}/admin/workers").json()["workers"]
        incarnation = after["incarnation"]
    assert incarnation == before["incarnation"] + 1
