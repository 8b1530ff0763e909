"""The `openai` and `anthropic` clients with images, against real workers with a scripted vision tower."""

import os
import signal

import anthropic
import openai
import pytest
from anthropic.types import ImageBlockParam, MessageParam, TextBlockParam

from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.images.files import PNG, base64_of, data_url, picture

pytestmark = pytest.mark.anyio

QUESTION = "What do you see in this picture, which is one of several that I have? " * 3
OTHER = picture("png", 5, 3, pnginfo=None, compress_level=0)


async def asked(client: openai.AsyncOpenAI, image: bytes) -> tuple[str, int, int]:
    """The answer about an image, the tokens of the prompt, and those of them that were cached."""
    answer = await client.chat.completions.create(
        model="tiny",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": QUESTION},
                    {"type": "image_url", "image_url": {"url": data_url(image)}},
                    {"type": "text", "text": "Be brief."},
                ],
            }
        ],
        max_tokens=8,
        temperature=0,
    )
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    return answer.choices[0].message.content or "", usage.prompt_tokens, cached or 0


async def streamed(client: openai.AsyncOpenAI, real: Real, kill: bool) -> str:
    """The text of a stream about an image, whose worker is killed in the middle of it."""
    stream = await client.responses.create(
        model="tiny",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": data_url(PNG), "detail": "low"},
                    {"type": "input_text", "text": "Describe it."},
                ],
            }
        ],
        max_output_tokens=24,
        temperature=0,
        stream=True,
    )
    text = ""
    async for event in stream:
        if event.type == "response.output_text.delta":
            text += event.delta
            if kill:
                kill = False
                (busy,) = (each for each in real.router.pool if each.live)
                pid = busy.status.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
    return text


async def test_answers_about_images_follow_from_their_bytes_and_outlive_a_worker() -> None:
    async with real_gateway(*(launch(name, images=True, rate=200) for name in ("w0", "w1"))) as real:
        base = f"http://127.0.0.1:{real.port}"
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
            first, tokens, _ = await asked(client, PNG)
            again, _, cached = await asked(client, PNG)
            other, _, shared = await asked(client, OTHER)
            assert first == again != other
            assert cached > 0.9 * tokens, "the same worker, and the whole prompt"
            assert shared < cached, "another image is another prefix"
            undisturbed = await streamed(client, real, kill=False)
            assert await streamed(client, real, kill=True) == undisturbed
        async with anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as messages:
            content: list[TextBlockParam | ImageBlockParam] = [
                {"type": "text", "text": "What is it?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(PNG)}},
            ]
            asked_of: list[MessageParam] = [{"role": "user", "content": content}]
            counted = await messages.messages.count_tokens(model="tiny", messages=asked_of)
            answer = await messages.messages.create(model="tiny", max_tokens=4, messages=asked_of)
            assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == counted.input_tokens
