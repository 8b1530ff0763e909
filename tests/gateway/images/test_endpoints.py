"""Requests with images in all dialects, from the socket to what the worker gets."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from gateway.app import create_app
from gateway.images.fetching import ImageFetcher
from gateway.images.loading import ImageLoader
from gateway.loop_lag import TICK_S, LoopLag
from gateway.streaming.image_inputs import MAX_INPUT_BYTES
from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGES
from protocol.codec import encode
from protocol.commands import Submit, Tokenize
from protocol.events import Capabilities, Ready, Tokenized
from protocol.request import ChatInput, ImagePlace
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import Served, serving
from tests.gateway.images.files import PNG, base64_of, data_url, picture, png_header

pytestmark = pytest.mark.anyio

JPEG = picture("jpeg", 40, 30)
TWO = ((b"", "png", 5, 3), (b"", "jpeg", 40, 30))


def seeing(name: str) -> FakeWorker:
    worker = FakeWorker(name, slots=8)
    worker.status = replace(worker.status, ready=Ready(Capabilities(chat=True, images=True)))
    return worker


@asynccontextmanager
async def eyes(**settings: Any) -> AsyncIterator[Served]:
    async with serving(make=seeing, **settings) as served:
        yield served
        assert served.router.bodies.held == 0


def part(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def chat(*content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": list(content)}]} | fields


def source(data: bytes, kind: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": base64_of(data)}}


TEXT = {"type": "text", "text": "What is "}
CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
BODIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], tuple[ImagePlace, ...]]] = {
    "anthropic": (
        "/v1/messages",
        {
            "model": "tiny",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": [TEXT, source(PNG, "image/png"), source(JPEG, "image/jpeg")]}],
        },
        ("messages[0].content[1].source.data", "messages[0].content[2].source.data"),
        (ImagePlace(0, 8), ImagePlace(1, 8)),
    ),
    "anthropic-result": (
        "/v1/messages",
        {
            "model": "tiny",
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [CALL]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "c1",
                            "is_error": True,
                            "content": [source(PNG, "image/png"), TEXT, source(JPEG, "image/jpeg")],
                        }
                    ],
                },
            ],
        },
        ("messages[2].content[0].content[0].source.data", "messages[2].content[0].content[2].source.data"),
        (ImagePlace(0, 7), ImagePlace(1, 15)),
    ),
    "ollama-chat": (
        "/api/chat",
        {"model": "tiny", "messages": [{"role": "user", "content": "?", "images": [base64_of(PNG), base64_of(JPEG)]}]},
        ("messages[0].images[0]", "messages[0].images[1]"),
        (ImagePlace(0, 0), ImagePlace(1, 0)),
    ),
    "ollama-generate": (
        "/api/generate",
        {"model": "tiny", "prompt": "?", "images": [base64_of(PNG), base64_of(JPEG)]},
        ("images[0]", "images[1]"),
        (ImagePlace(0, 0), ImagePlace(1, 0)),
    ),
    "openai": (
        "/v1/chat/completions",
        chat(TEXT, part(data_url(PNG)), {"type": "text", "text": "and"}, part(data_url(JPEG, "image/jpg"))),
        ("messages[0].content[1].image_url", "messages[0].content[3].image_url"),
        (ImagePlace(0, 8), ImagePlace(1, 11)),
    ),
    "responses": (
        "/v1/responses",
        {
            "model": "tiny",
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": data_url(PNG)},
                        {"type": "input_text", "text": "or"},
                        {"type": "input_image", "image_url": data_url(JPEG, "IMAGE/PNG")},
                    ],
                }
            ],
        },
        ("input[0].content[0].image_url", "input[0].content[2].image_url"),
        (ImagePlace(0, 0), ImagePlace(1, 2)),
    ),
    "responses-output": (
        "/v1/responses",
        {
            "model": "tiny",
            "input": [
                {"role": "user", "content": "hi"},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [
                        {"type": "input_image", "image_url": data_url(PNG)},
                        {"type": "input_image", "image_url": data_url(JPEG)},
                    ],
                },
            ],
        },
        ("input[2].output[0].image_url", "input[2].output[1].image_url"),
        (ImagePlace(0, 0), ImagePlace(1, 0)),
    ),
}


async def submitted(served: Served, path: str, body: dict[str, Any]) -> Submit:
    """What the worker gets of a request, which is then answered."""
    async with anyio.create_task_group() as group:
        before = len(served.worker.submits)
        statuses = []

        async def post() -> None:
            answer = await served.client.post(path, json=body | {"stream": False})
            statuses.append((answer.status_code, answer.text))

        group.start_soon(post)
        submit = (await served.worker.wait_submits(before + 1))[-1]
        served.worker.finish(submit.stream, "A dog.")
    assert [status for status, _ in statuses] == [200], statuses
    return submit


@pytest.mark.parametrize("name", sorted(BODIES))
async def test_the_worker_gets_the_images_of_every_dialect_in_their_places(name: str) -> None:
    path, body, fields, places = BODIES[name]
    async with eyes() as served:
        submit = await submitted(served, path, body)
    made = submit.input
    assert isinstance(made, ChatInput)
    assert made.messages[-1].images == places
    assert [(each.data, each.format, each.width, each.height) for each in made.images] == [
        (PNG, "png", 5, 3),
        (JPEG, "jpeg", 40, 30),
    ]
    assert [each.field for each in made.images] == list(fields)
    assert [each.digest for each in made.images] == [
        hashlib.blake2b(data, digest_size=16).digest() for data in (PNG, JPEG)
    ]


@pytest.mark.parametrize("name", sorted(BODIES))
async def test_a_model_without_vision_refuses_and_names_the_first_image(name: str) -> None:
    path, body, fields, _ = BODIES[name]
    async with serving() as served:
        answer = await served.client.post(path, json=body)
        assert answer.status_code == 400
        assert f"`{fields[0]}`: model 'tiny' takes no images" in answer.text
        assert served.router.bodies.held == 0
        assert not served.worker.submits


async def test_models_say_what_they_take() -> None:
    async with eyes() as served, serving() as blind:
        for one, modalities, capabilities in (
            (served, ["text", "image"], ["completion", "vision"]),
            (blind, ["text"], ["completion"]),
        ):
            (model,) = (await one.client.get("/v1/models")).json()["data"]
            assert model["architecture"] == {"input_modalities": modalities, "output_modalities": ["text"]}
            assert (await one.client.post("/api/show", json={"model": "tiny"})).json()["capabilities"] == capabilities


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        pytest.param(
            data_url(b"<svg/>"), "is not an image: it is not a PNG, JPEG, WebP or GIF file", id="other format"
        ),
        pytest.param(data_url(png_header(9000, 9000)), "9000 x 9000 pixels; 40000000 are allowed", id="bomb"),
        pytest.param(data_url(PNG)[:-1] + "!", "is not base64", id="not base64"),
        pytest.param(data_url(PNG)[:-3], "is not base64", id="cut off"),
        pytest.param("https://example.org/a.png", "allow_image_urls", id="url"),
    ],
)
async def test_images_that_are_refused(url: str, problem: str) -> None:
    async with eyes() as served:
        answer = await served.client.post("/v1/chat/completions", json=chat(part(data_url(PNG)), part(url)))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages[0].content[1].image_url")
        assert problem in error["message"]
        assert not served.worker.submits


async def test_bounds_of_count_and_bytes_and_line_breaks_in_base64() -> None:
    lines = "\r\n".join(base64_of(PNG)[at : at + 76] for at in range(0, len(base64_of(PNG)), 76))
    large = PNG + bytes(MAX_IMAGE_BYTES - len(PNG))
    async with eyes(max_fanout_bytes=1) as served:
        path = "/v1/chat/completions"
        broken = f"data:image/png;base64,{lines}\n"
        submit = await submitted(served, path, chat(*[part(broken, detail="low")] * MAX_IMAGES))
        assert isinstance(submit.input, ChatInput)
        assert {(each.data, each.detail) for each in submit.input.images} == {(PNG, "low")}
        assert len(submit.input.images) == MAX_IMAGES
        error = (await served.client.post(path, json=chat(*[part(data_url(PNG))] * (MAX_IMAGES + 1)))).json()["error"]
        assert error["param"] == f"messages[0].content[{MAX_IMAGES}].image_url"
        over = chat(part(data_url(PNG)), part(data_url(large)))
        error = (await served.client.post(path, json=over)).json()["error"]
        assert error["param"] == "messages[0].content[1].image_url"
        text = {"type": "text", "text": "x" * (MAX_INPUT_BYTES - MAX_IMAGE_BYTES)}
        answer = await served.client.post(path, json=chat(part(data_url(large)), text))
        assert answer.status_code == 413


async def test_the_largest_images_do_not_hold_the_loop() -> None:
    large = PNG + bytes(range(256)) * ((MAX_IMAGE_BYTES - len(PNG)) // 256)
    body = json.dumps(chat(part(data_url(large)))).encode()
    assert len(body) > 16_000_000
    longest = []
    async with eyes() as served, anyio.create_task_group() as group:
        group.start_soon(turns, longest)
        for stream in (1, 2):
            group.start_soon(post, served, body)
            submit = (await served.worker.wait_submits(stream))[-1]
            served.worker.finish(submit.stream, "x")
            assert len(encode(submit)) < MAX_INPUT_BYTES
            assert served.router.bodies.held > len(body) * 0.9
        group.cancel_scope.cancel()
    print(sorted(longest)[-5:])
    assert max(longest) < 0.5  # far from what any of its parts would take in one turn on a busy machine


async def turns(longest: list[float]) -> None:
    loop = anyio.current_time
    while True:
        before = loop()
        await anyio.lowlevel.checkpoint()
        longest.append(loop() - before)


async def post(served: Served, body: bytes) -> None:
    await served.client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})


async def test_counts_of_tokens_have_images() -> None:
    async with eyes() as served, anyio.create_task_group() as group:
        _, body, fields, _ = BODIES["anthropic"]
        asked = {key: value for key, value in body.items() if key != "max_tokens"}
        answers = []

        async def count() -> None:
            answers.append((await served.client.post("/v1/messages/count_tokens", json=asked)).json())

        group.start_soon(count)
        (query,) = await served.worker.wait_queries(1)
        assert isinstance(query, Tokenize)
        assert isinstance(query.input, ChatInput)
        assert [each.field for each in query.input.images] == list(fields)
        served.worker.say(Tokenized(query.query, 77))
        while not answers:
            await anyio.lowlevel.checkpoint()
        assert answers == [{"input_tokens": 77}]
