"""The clients of OpenAI and Anthropic, which ask a gateway in turn."""

from typing import Any

import anthropic
import anyio
import openai

from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import CHAT


async def ask_in_turn(
    worker: FakeWorker, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic
) -> list[str | None]:
    """Send the same chat by each client; the worker answers "yes" to both. Returns what the clients got."""
    answers: list[str | None] = []
    chat: Any = CHAT

    async def ask() -> None:
        completion = await of_openai.chat.completions.create(**chat)
        answers.append(completion.choices[0].message.content)
        message = await of_anthropic.messages.create(**chat)
        answers.extend(block.text for block in message.content if block.type == "text")

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        for count in (1, 2):
            submit = (await worker.wait_submits(count))[-1]
            worker.finish(submit.stream, "yes")
    return answers
