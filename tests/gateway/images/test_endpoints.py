"""Requests with images in all dialects, from the socket to what the worker gets."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.images.loading import ImageLoader
from gateway.streaming.image_inputs import MAX_INPUT_BYTES
from protocol.bounds import MAX_IMAGE_BYTES, MAX_IMAGES
from protocol.codec import encode
from protocol.commands import Submit, Tokenize
from protocol.events import Tokenized
from protocol.request import ChatInput, ImagePlace
from tests.gateway.harness.serving import Served, open_raw, serving
from tests.gateway.images.files import PNG, base64_of, data_url, picture, png_header
from tests.gateway.images.sites import Site, seeing, silent, site, whole

pytestmark = pytest.mark.anyio

JPEG = picture("jpeg", 40, 30)


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
    """Send a request, answer it, and return what the worker got."""
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
        pytest.param(data_url(PNG)[:-3], "is not base64", id="truncated"),
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


async def test_bounds_of_count_and_line_breaks_in_base64() -> None:
    lines = "\r\n".join(base64_of(PNG)[at : at + 76] for at in range(0, len(base64_of(PNG)), 76))
    async with eyes() as served:
        path = "/v1/chat/completions"
        broken = f"data:image/png;base64,{lines}\n"
        submit = await submitted(served, path, chat(*[part(broken, detail="low")] * MAX_IMAGES))
        assert isinstance(submit.input, ChatInput)
        assert {(each.data, each.detail) for each in submit.input.images} == {(PNG, "low")}
        assert len(submit.input.images) == MAX_IMAGES
        error = (await served.client.post(path, json=chat(*[part(data_url(PNG))] * (MAX_IMAGES + 1)))).json()["error"]
        assert error["param"] == f"messages[0].content[{MAX_IMAGES}].image_url"


async def test_the_largest_images_fit_into_a_frame_and_are_counted_until_the_answer() -> None:
    large = PNG + bytes(MAX_IMAGE_BYTES - len(PNG))
    url = data_url(large)
    async with eyes() as served, anyio.create_task_group() as group:
        body = json.dumps(chat(part(url))).encode()
        group.start_soon(post, served, body)
        (submit,) = await served.worker.wait_submits(1)
        assert served.router.bodies.held == len(body) > 16_000_000
        assert len(encode(submit)) < MAX_INPUT_BYTES
        served.worker.finish(submit.stream, "x")
        assert served.router.bodies.held == 0
        text = {"type": "text", "text": "x" * (MAX_INPUT_BYTES - MAX_IMAGE_BYTES)}
        assert await post(served, json.dumps(chat(part(url), text)).encode()) == 413
        assert len(served.worker.submits) == 1


async def post(served: Served, body: bytes) -> int:
    headers = {"content-type": "application/json"}
    return (await served.client.post("/v1/chat/completions", content=body, headers=headers)).status_code


async def test_many_requests_leave_nothing_counted() -> None:
    _, body, _, _ = BODIES["openai"]
    async with eyes() as served:
        for _ in range(20):
            await submitted(served, "/v1/chat/completions", body)
            assert served.router.bodies.held == 0


async def test_a_client_that_leaves_ends_the_fetching_of_its_images_and_a_fetched_one_is_counted() -> None:
    async with site(silent) as quiet, looking(quiet) as served:
        address = f"http://images.test:{quiet.port}/a.png"
        stream = await open_raw(served.port, "/v1/chat/completions", chat(part(address)))
        while not quiet.open:
            await anyio.lowlevel.checkpoint()
        await stream.aclose()
        while quiet.open or served.router.bodies.held:
            await anyio.lowlevel.checkpoint()
        assert not served.worker.submits
    async with site(whole()) as quick, looking(quick) as served, anyio.create_task_group() as group:
        body = json.dumps(chat(part(f"http://images.test:{quick.port}/a.png"))).encode()
        group.start_soon(post, served, body)
        (submit,) = await served.worker.wait_submits(1)
        assert served.router.bodies.held == len(body) + len(PNG)
        assert isinstance(submit.input, ChatInput)
        assert submit.input.images[0].data == PNG
        served.worker.finish(submit.stream, "x")


@asynccontextmanager
async def looking(site: Site) -> AsyncIterator[Served]:
    """A gateway that fetches from a site of this machine."""

    async with eyes(images=lambda settings: ImageLoader(settings, site.fetcher())) as served:
        yield served


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
