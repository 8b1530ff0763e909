"""Fault x phase x API x streaming: the client gets the undisturbed answer, whatever fault happens when.

Over HTTP, with the worker's own engine and text code in this process (`tests/gateway/harness/engines.py`). Faults of
real processes are in `test_faults.py` and `test_killed_workers.py`.
"""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from gateway.openai.logprobs import CompletionLogprobs, chat_logprobs
from protocol.errors import ErrorCode
from protocol.events import Event, Failed
from tests.gateway.harness.engines import Answer, EngineWorker, undisturbed
from tests.gateway.harness.serving import CHAT, COMPLETION, Served, events, serving

pytestmark = pytest.mark.anyio

TOKENS = 24
ASKED = {"n": 2, "seed": 5, "max_tokens": TOKENS, "return_token_ids": True, "ignore_eos": True, "stop": ["ee"]}
EDITS = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.2, "logit_bias": {"101": 2}}
APIS = {
    "completions": ("/v1/completions", COMPLETION | EDITS | {"logprobs": 2}),
    "chat": ("/v1/chat/completions", CHAT | EDITS | {"logprobs": True, "top_logprobs": 2}),
}


def _dies(worker: EngineWorker) -> None:
    worker.die()


def _is_late(worker: EngineWorker) -> None:
    """The output of two steps was delayed, and comes with the next one."""
    said: list[Event] = []
    with worker.muffled(said):
        worker.step()
        worker.step()
    for event in said:
        worker.say(event)


def _hangs_and_is_killed(worker: EngineWorker) -> None:
    """Its last words are of a life that is over: they come after the next one began."""
    said: list[Event] = []
    with worker.muffled(said):
        worker.step()
    incarnation = worker.status.incarnation
    worker.die()
    for event in said:
        worker.say(event, incarnation)


def _is_replaced(worker: EngineWorker) -> None:
    worker.restart()


def _leaves(worker: EngineWorker) -> None:
    worker.leave()


def _moves(worker: EngineWorker) -> None:
    worker.router.migrate(worker.name)


def _dies_unheard(worker: EngineWorker) -> None:
    """Two steps were computed whose frames never arrived."""
    worker.step(arrives=False)
    worker.step(arrives=False)
    worker.die()


def _fails_a_step(worker: EngineWorker) -> None:
    for handle in list(worker.router.pool):
        for number in list(handle.live) if handle.name == worker.name else ():
            worker.say(Failed(number, ErrorCode.STEP, "no"))
            worker.forget(number)


FAULTS: dict[str, Callable[[EngineWorker], None]] = {
    "dies": _dies,
    "dies unheard": _dies_unheard,
    "is late": _is_late,
    "hangs and is killed": _hangs_and_is_killed,
    "is replaced": _is_replaced,
    "leaves": _leaves,
    "is vacated": _moves,
    "fails a step": _fails_a_step,
}
PHASES = {"queued": 0, "first token": 1, "decoding": 9, "all but the end": TOKENS - 1}
"""The number of steps that arrive before."""


async def ask(served: Served, api: str, streaming: bool, into: list[Any]) -> None:
    path, body = APIS[api]
    body = body | ASKED | ({"stream": True, "stream_options": {"include_usage": True}} if streaming else {})
    if not streaming:
        into.append((await served.client.post(path, json=body)).json())
        return
    async with served.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        into += await events(response)


def merged(reports: list[Any]) -> dict[str, list[Any]]:
    """Log-probabilities, whatever chunks they came in."""
    found: dict[str, list[Any]] = {}
    for name, values in [pair for report in reports for pair in (report or {}).items()]:
        found.setdefault(name, []).extend(values or ())
    return found


def summary(answer: list[Any]) -> dict[str, Any]:
    """Text, ids, log-probabilities and reason of each choice, and the usage: the same for a stream and a whole answer.
    Everything that may be there once only is checked on the way."""
    if answer[-1] == "[DONE]":
        assert answer.count("[DONE]") == 1
    chunks = [chunk for chunk in answer if chunk != "[DONE]"]
    assert not [chunk["error"] for chunk in chunks if "error" in chunk]
    assert len({chunk["id"] for chunk in chunks}) == 1
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert len(usage) == 1
    found: dict[str, Any] = {"usage": {name: count for name, count in usage[0].items() if name.endswith("_tokens")}}
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        bodies = [choice.get("message") or choice.get("delta") or {} for choice in choices]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert len(reasons) == 1
        found[str(index)] = (
            "".join([body.get("content") or "" for body in bodies] + [choice.get("text") or "" for choice in choices]),
            tuple(token for choice in choices for token in choice.get("token_ids") or ()),
            merged([choice["logprobs"] for choice in choices]),
            reasons[0],
        )
    return found


def expected(each: Answer, api: str) -> tuple[Any, ...]:
    """The summary that a choice must have."""
    report = chat_logprobs(each.logprobs) if api == "chat" else CompletionLogprobs().write(each.logprobs)
    return each.text, each.tokens, merged([msgspec.json.decode(msgspec.json.encode(report))]), each.reason


async def finish(served: Served, ended: anyio.Event) -> None:
    """Let the workers compute until the client has its answer."""
    while not ended.is_set():
        for worker in served.workers:
            assert isinstance(worker, EngineWorker)
            if worker.status.state == "ready" and not worker.idle:
                worker.step()
        await anyio.lowlevel.checkpoint()


async def play(served: Served, api: str, streaming: bool, steps: int, fault: str) -> dict[str, Any]:
    """One request, with a fault after so many steps."""
    got: list[Any] = []
    ended = anyio.Event()

    async def client() -> None:
        await ask(served, api, streaming, got)
        ended.set()

    worker = served.worker
    assert isinstance(worker, EngineWorker)
    async with anyio.create_task_group() as group:
        group.start_soon(client)
        await worker.wait_submits(2)
        for _ in range(steps):
            worker.step()
            await anyio.lowlevel.checkpoint()
        FAULTS[fault](worker)
        if not worker.router.pool[worker.name].ready:
            worker.restart()
        group.start_soon(finish, served, ended)
    return summary(got)


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_client_gets_the_undisturbed_answer(fault: str, phase: str, api: str, streaming: bool) -> None:
    async with serving(make=EngineWorker) as served:
        found = await play(served, api, streaming, PHASES[phase], fault)
        assert served.live == 0
        first, second = (undisturbed(submit) for submit in served.worker.submits[:2])
        assert found.pop("usage") == {
            "prompt_tokens": first.prompt_tokens,
            "completion_tokens": first.completion_tokens + second.completion_tokens,
            "total_tokens": first.prompt_tokens + first.completion_tokens + second.completion_tokens,
        }
        assert found == {str(index): expected(each, api) for index, each in enumerate((first, second))}
