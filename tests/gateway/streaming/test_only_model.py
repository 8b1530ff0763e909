"""Requests without a `model`, in every dialect that lets it be left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.keys.record import KeyLimits, make_key, make_record
from protocol.events import Tokenized
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.transcripts import site
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.streaming.moving.two_gateways import two_gateways

pytestmark = pytest.mark.anyio
MESSAGES = [{"role": "user", "content": "hi"}]
GENERATED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "store": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
}
POOLED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
}
QUERIES: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": "hi"},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


@pytest.mark.parametrize("path", GENERATED)
async def test_the_only_model_answers_under_its_own_name(path: str) -> None:
    async with site() as made:
        connection = made.post(path, GENERATED[path])
        (stream,) = await made.placed()
        made.worker.finish(stream, "ho")
        await connection.ended.wait()
    assert (connection.status, json.loads(connection.body)["model"]) == (200, "tiny")


@pytest.mark.parametrize("path", QUERIES)
async def test_the_only_model_counts_tokens(path: str) -> None:
    async with site() as made:
        connection = made.post(path, QUERIES[path])
        (query,) = await made.worker.wait_queries(1)
        made.worker.say(Tokenized(query.query, 2))
        await connection.ended.wait()
    assert connection.status == 200


@pytest.mark.parametrize("path", GENERATED | POOLED | QUERIES)
async def test_of_several_models_the_error_has_the_names_that_the_key_may_use(path: str, tmp_path: Path) -> None:
    key, body = make_key(), (GENERATED | POOLED | QUERIES)[path]
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(make_record("alice", key, KeyLimits(models=("tiny", "other"))).line())
    async with site(api_keys_file=str(file)) as made:
        for name in ("other", "secret"):
            FakeWorker(name, model=name).join(made.router)
        connection = made.clients.open("POST", path, body, authorization=f"Bearer {key}")
        await connection.ended.wait()
    error = json.loads(connection.body)["error"]
    text = "`model` is required, unless one model is served; available: 'tiny', 'other'"
    assert (connection.status, error["message"], error.get("param", "model")) == (400, text, "model")


async def test_a_key_for_one_of_several_models_needs_to_name_none(tmp_path: Path) -> None:
    key, file = make_key(), tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(make_record("alice", key, KeyLimits(models=("tiny",))).line())
    async with site(api_keys_file=str(file)) as made:
        FakeWorker("other", model="other").join(made.router)
        connection = made.clients.open("POST", "/v1/completions", {"prompt": "hi"}, authorization=f"Bearer {key}")
        (stream,) = await made.placed()
        made.worker.finish(stream, "ho")
        await connection.ended.wait()
        assert json.loads(connection.body)["model"] == "tiny"
        rerank = made.clients.open("POST", "/v1/rerank", POOLED["/v1/rerank"], authorization=f"Bearer {key}")
        await rerank.ended.wait()
    assert (rerank.status, json.loads(rerank.body)["error"]["message"]) == (400, "`model` is required")


async def test_another_gateway_continues_with_the_model_that_was_the_only_one() -> None:
    async with two_gateways() as (one, two, _):
        FakeWorker("w1", model="other").join(two.router)
        body = {"prompt": "hi", "stream": True, "stream_options": {"resume_s": 60}}
        first = one.open("POST", "/v1/completions", body)
        (submit,) = await one.worker.wait_submits(1)
        one.worker.token(submit.stream, "one", 1)
        await first.until(1)
        one.die()
        last = first.events[-1].partition(b"id: ")[2].partition(b"\n")[0].decode()
        again = two.open("GET", f"/v1/streams/{first.headers['x-stream-id']}", last_event_id=last)
        (submit,) = await two.worker.wait_submits(1)
        two.worker.finish(submit.stream, "one and all")
        await again.ended.wait()
    assert (b'"model":"tiny"' in again.body, b" and all" in again.body) == (True, True)
