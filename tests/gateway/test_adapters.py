"""Adapters that requests name as their model, from every dialect to the rows of a worker."""

import os
import signal
from typing import Any

import pytest

from gateway.models.terms import ModelTerms
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import events

pytestmark = pytest.mark.anyio

ADAPTERS = ("sql", "py")
PROMPT = "This is a prompt that is long enough for its cache rows to be worth keeping for the next request. "
COMPLETION = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}


async def asked(real: Real, model: str) -> tuple[list[int], int]:
    """The tokens of a completion, and how many of its prompt were cached."""
    answer = (await real.client.post("/v1/completions", json=COMPLETION | {"model": model})).json()
    assert answer["model"] == model
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    "known", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["settings", "workers"]
)
async def test_requests_name_adapters_in_every_dialect_and_share_no_rows(known: bool) -> None:
    terms = [ModelTerms(name="tiny", adapters=ADAPTERS)] if known else []
    async with real_gateway(launch("w0", lora_modules=ADAPTERS), models=terms, ready=["w0"]) as real:
        cold = [await asked(real, name) for name in ("tiny", *ADAPTERS)]
        warm = [await asked(real, name) for name in ("tiny", *ADAPTERS)]
        assert [cached for _, cached in cold] == [0, 0, 0]
        assert all(cached > 0 for _, cached in warm)
        assert [tokens for tokens, _ in warm] == [tokens for tokens, _ in cold]
        assert len({tuple(tokens) for tokens, _ in cold}) == 3
        together = await gather(*(lambda name=name: asked(real, name) for name in (*ADAPTERS, "tiny", *ADAPTERS)))
        assert [tokens for tokens, _ in together] == [cold[at][0] for at in (1, 2, 0, 1, 2)]

        listed = (await real.client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["root"], each["parent"]) for each in listed] == [
            ("tiny", "tiny", None),
            ("sql", "tiny", "tiny"),
            ("py", "tiny", "tiny"),
        ]
        assert (await real.client.get("/v1/models/sql")).json() == listed[1]
        claude = {"anthropic-version": "2023-06-01"}
        assert [each["id"] for each in (await real.client.get("/v1/models", headers=claude)).json()["data"]] == [
            each["id"] for each in listed
        ]
        tags = (await real.client.get("/api/tags")).json()["models"]
        assert [(each["name"], each["details"]["parent_model"]) for each in tags] == [
            ("tiny", ""),
            ("sql", "tiny"),
            ("py", "tiny"),
        ]
        for path, body in (
            ("/v1/chat/completions", CHAT | {"model": "sql"}),
            ("/v1/messages", CHAT | {"model": "sql"}),
            ("/v1/responses", {"model": "sql", "input": PROMPT, "max_output_tokens": 16}),
            ("/api/chat", {"model": "sql:latest", "messages": CHAT["messages"], "stream": False}),
            ("/api/generate", {"model": "sql", "prompt": PROMPT, "stream": False, "options": {"num_predict": 4}}),
        ):
            answer = await real.client.post(path, json=body, headers=claude if path == "/v1/messages" else {})
            assert (answer.status_code, answer.json()["model"].removesuffix(":latest")) == (200, "sql"), answer.text
        assert (await real.client.post("/tokenize", json={"model": "py", "prompt": "abc"})).json()["count"] == 3
        wrong = await real.client.post("/v1/completions", json=COMPLETION | {"model": "none"})
        assert wrong.json()["error"]["message"] == "there is no model 'none'; available: 'tiny', 'sql', 'py'"
        metrics = (await real.client.get("/metrics")).text
        assert 'baton_adapter_requests_total{adapter="sql",model="tiny"} 9.0' in metrics
        assert 'baton_adapter_requests_total{adapter="py",model="tiny"} 4.0' in metrics


async def test_an_answer_of_an_adapter_goes_on_after_its_worker_is_killed() -> None:
    workers = [launch(name, rate=200, lora_modules=ADAPTERS) for name in ("a", "b")]
    body = COMPLETION | {"model": "py", "max_tokens": 60}
    async with real_gateway(*workers) as real:
        expected = (await real.client.post("/v1/completions", json=body)).json()["choices"][0]["token_ids"]
        pids = {each.name: each.status.pid for each in real.workers}

        async def streamed() -> list[Any]:
            async with real.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
                return await events(response)

        def kill() -> None:
            (worker,) = (each.worker for each in real.router.sequences())
            pid = pids[worker]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        def answering() -> bool:
            return any(each.worker and len(each.tokens) > 5 for each in real.router.sequences())

        chunks, _ = await gather(streamed, lambda: real.until(answering, kill))
        metrics = (await real.client.get("/metrics")).text
    tokens = [token for chunk in chunks[:-1] for choice in chunk["choices"] for token in choice["token_ids"]]
    assert tokens == expected
    assert 'baton_replays_total{cause="killed",model="tiny",outcome="resumed"} 1.0' in metrics
