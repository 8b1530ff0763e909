"""Deaths of workers in the middle of constrained answers: the grammar continues where it was."""

import functools
import json
import os
import signal
from typing import Any

import anyio
import pytest

from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import events
from tests.pids import pid_of
from workers.faults.plan import Fault

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 30, "maxLength": 40},
        "kind": {"enum": ["a longer name", "another one"]},
        "counts": {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 6},
    },
    "required": ["name", "kind", "counts"],
    "additionalProperties": False,
}
GRAMMARS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"guided_regex": "([a-c]{3}-){20}end"},
    {"guided_choice": ["the first of two long choices, of which one is sampled", "the first of the others, perhaps"]},
    {"structured_outputs": {"grammar": 'start: ("(" w ")")+\nw: /[a-z]{4,9}/'}},
    {},
    {"allowed_token_ids": [*b"abcdefgh "]},
    {"guided_regex": "([a-d]{3}-){20}", "allowed_token_ids": [*b"ab-"]},
]
TOKENS = 220


def body(index: int) -> dict[str, Any]:
    common = {"model": "tiny", "prompt": f"request {index}", "max_tokens": TOKENS, "temperature": 1, "seed": index}
    return common | {"return_token_ids": True, "stream": True} | GRAMMARS[index % len(GRAMMARS)]


async def ask(real: Real, index: int) -> tuple[str, list[int], str]:
    async with real.client.stream("POST", "/v1/completions", json=body(index)) as response:
        assert response.status_code == 200
        *chunks, done = await events(response)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    ids = [token for choice in choices for token in choice["token_ids"]]
    return "".join(choice["text"] for choice in choices), ids, reason


async def ask_all(real: Real) -> list[Any]:
    return await gather(*[functools.partial(ask, real, index) for index in range(8)])


def delivered(real: Real) -> list[int]:
    return [len(stream.tokens) for handle in real.router.pool for stream in handle.live.values()]


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """Answers to the eight when nothing happens."""

    async def undisturbed() -> list[Any]:
        async with real_gateway(launch("w0", slots=8)) as real:
            return await ask_all(real)

    answers = anyio.run(undisturbed)
    reasons = [reason for _, _, reason in answers]
    assert "stop" in reasons
    for index, (text, _, reason) in enumerate(answers):
        if index % len(GRAMMARS) == 0 and reason == "stop":
            assert json.loads(text).keys() == {"name", "kind", "counts"}
    assert set(answers[5][0]) == {*"abcdefgh "}
    assert set(answers[6][0]) == {*"ab-"}
    assert answers[6][2] == "stop"
    return answers


@pytest.mark.parametrize("after", [1, 10, 40])
async def test_constrained_streams_continue_on_the_restarted_worker(after: int, whole: list[Any]) -> None:
    async with real_gateway(launch("w0", slots=4, rate=300)) as real:

        async def kill() -> None:
            await real.until(
                lambda: max(delivered(real), default=0) >= after, lambda: os.kill(pid_of(real.status()), signal.SIGKILL)
            )

        again, _ = await gather(lambda: ask_all(real), kill)
        assert again == whole
        await real.until(lambda: real.status().incarnation == 2)


async def test_constrained_streams_continue_on_another_worker(whole: list[Any]) -> None:
    fault = Fault("kill", call=30, incarnation=1)
    async with real_gateway(launch("a", rate=300, faults=(fault,)), launch("b", rate=300)) as real:
        assert await ask_all(real) == whole
        await real.until(lambda: real.status().incarnation == 2)


async def test_a_grammar_that_gets_too_expensive_ends_its_stream_alone(whole: list[Any]) -> None:
    """A typed error, without a second try on another worker."""
    source = 'start: "a" (x x x x x x x x x x)*\nx: ' + " | ".join(f'"a"{{1,{count}}}' for count in range(1, 300))
    trap = body(4) | {"guided_grammar": source, "stream": False}
    async with real_gateway(launch("w0", slots=8)) as real:
        answer, *others = await gather(
            functools.partial(real.client.post, "/v1/completions", json=trap),
            *[functools.partial(ask, real, index) for index in range(8)],
        )
        assert others == whole
        assert real.status().incarnation == 1
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "guided_grammar")
    assert "the grammar failed after" in error["message"]
