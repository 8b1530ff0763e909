"""Ranks of documents and scores of pairs of texts, by a classifier and by embeddings."""

from typing import Any

import anyio
import httpx
import pytest
from msgspec.structs import replace

from gateway.openai.models import ranks_by
from gateway.openai.rerank.schema import MAX_DOCUMENTS
from protocol.events import Capabilities
from tests.gateway.harness.engines import EngineWorker
from tests.gateway.openai.embeddings.stepped import stepped
from workers.scripted.pooling import ScriptedPooling

pytestmark = pytest.mark.anyio
DOCUMENTS = ["Paris is in France.", "Bread is baked.", "Bread is baked.", "a question"]
KINDS: list[ScriptedPooling] = ["pairs", "vectors"]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json={"model": "tiny"} | body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("known", "by"),
    [
        (Capabilities(pairs=True, labels=1), "cross-encoder"),
        (Capabilities(pairs=True, labels=1, decoder_scores=True), "decoder"),
        (Capabilities(pairs=True, labels=1, vector_width=4), "cross-encoder"),
        (Capabilities(pairs=True, labels=3, vector_width=4), None),
        (Capabilities(vector_width=4), "embeddings"),
        (Capabilities(), None),
    ],
    ids=["cross-encoder", "decoder", "both", "labels", "embeddings", "neither"],
)
def test_a_model_states_by_what_it_ranks(known: Capabilities, by: str | None) -> None:
    assert ranks_by(known) == by


@pytest.mark.parametrize("kind", KINDS)
async def test_documents_are_ranked_by_their_scores(kind: ScriptedPooling) -> None:
    query = "a question"
    async with stepped(pooling=kind) as served:
        whole = await post(served.client, "/v1/rerank", query=query, documents=DOCUMENTS, return_documents=True)
        results = whole["results"]
        scores = [each["relevance_score"] for each in results]
        assert scores == sorted(scores, reverse=True)
        assert sorted(each["index"] for each in results) == [0, 1, 2, 3]
        assert all(each["document"] == {"text": DOCUMENTS[each["index"]]} for each in results)
        by_index = {each["index"]: each["relevance_score"] for each in results}
        assert by_index[1] == by_index[2]  # equal documents, the first one first
        assert [each["index"] for each in results if each["index"] in (1, 2)] == [1, 2]
        assert whole["id"].startswith("rerank-")
        objects = [{"text": each} for each in DOCUMENTS]
        for path in ("/rerank", "/v2/rerank"):
            best = await post(served.client, path, query=query, documents=objects, top_n=2)
            expected = [{key: each[key] for key in ("index", "relevance_score")} for each in results[:2]]
            assert best["results"] == expected
        scored = await post(served.client, "/score", text_1=query, text_2=DOCUMENTS)
        if kind == "pairs":
            assert [each["score"] for each in scored["data"]] == [by_index[index] for index in range(4)]
        one = await post(served.client, "/v1/score", text_1=[query] * 4, text_2=DOCUMENTS)
        assert one["data"] == scored["data"]
        single = await post(served.client, "/v1/score", text_1=query, text_2=DOCUMENTS[0])
        assert single["data"] == scored["data"][:1]
        if kind == "vectors":
            assert scored["data"][3]["score"] == pytest.approx(1)  # the same text twice, without prompts
            assert scored["usage"]["prompt_tokens"] == sum(map(len, {query, *DOCUMENTS}))
            prompted = [f"query: {query}", *(f"passage: {each}" for each in DOCUMENTS)]
            assert whole["usage"]["prompt_tokens"] == sum(map(len, set(prompted)))
            same = await post(served.client, "/score", text_1=prompted[0], text_2=prompted[1:])
            assert [each["score"] for each in same["data"]] == [by_index[index] for index in range(4)]
        else:
            assert all(0 < score < 1 for score in scores)
            assert whole["usage"]["prompt_tokens"] == sum(len(query) + len(each) + 2 for each in DOCUMENTS)


async def test_pairs_are_truncated_at_the_longer_text() -> None:
    async with stepped(pooling="pairs") as served:
        long, short = "x" * 30, "abc"
        truncated = await post(served.client, "/v1/score", text_1=short, text_2=long, truncate_prompt_tokens=15)
        assert truncated["usage"]["prompt_tokens"] == 15
        same = await post(served.client, "/v1/score", text_1=short, text_2=long[:10])
        assert truncated["data"] == same["data"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "text"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "empty"),
        ("/v1/rerank", {"query": "q", "documents": ["a", ""]}, "documents[1]", "empty"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents", ""),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents", "2047"),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b" * 5000]}, "documents[1]", "4096"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n", ""),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "max_chunks_per_doc": 3}, "max_chunks_per_doc", "supported"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "instruction": "judge"}, "instruction", "leave it out"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "judge"}, "instruction", "leave it out"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "instruction": "x" * 4097}, "instruction", ""),
        ("/v1/score", {"prompt": "c", "instruction": "judge"}, "instruction", "text_1"),
        ("/v1/score", {"text_1": "a"}, "text_2", "required"),
        ("/v1/score", {"text_2": "a"}, "text_1", "required"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1", "as many"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2[1]", "empty"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "prompt": "c"}, "prompt", "exclude"),
        ("/v1/score", {"prompt": "c", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens", "text_1"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_refusals_name_the_field(
    kind: ScriptedPooling, path: str, fields: dict[str, Any], param: str, text: str
) -> None:
    async with stepped(pooling=kind) as served:
        response = await served.client.post(path, json={"model": "tiny"} | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), error
        assert text in error["message"]


async def test_a_model_without_vectors_or_a_classifier_is_named() -> None:
    from tests.gateway.harness.serving import serving

    async with serving() as served:
        response = await served.client.post("/rerank", json={"model": "tiny", "query": "q", "documents": ["a"]})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, "model", "unsupported")


async def test_a_classifier_of_several_labels_ranks_nothing() -> None:
    """None of its labels is the score of a pair."""
    async with stepped(pooling="pairs") as served:
        await post(served.client, "/rerank", query="q", documents=["a"])
        ready = served.worker.status.ready
        assert ready is not None
        served.worker.change(ready=replace(ready, capabilities=replace(ready.capabilities, labels=3)))
        bodies: dict[str, Any] = {
            "/rerank": {"query": "q", "documents": ["a"]},
            "/score": {"text_1": "q", "text_2": "a"},
        }
        for path, body in bodies.items():
            response = await served.client.post(path, json={"model": "tiny"} | body)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, "model", "unsupported")
            assert "3 labels" in error["message"]


async def test_another_worker_computes_the_same_scores() -> None:
    """A worker is lost within a batch: what it had is computed again, once, to the same bits."""
    documents = [f"document {number} " * 9 for number in range(60)]
    async with stepped(pooling="pairs") as served:
        expected = await post(served.client, "/v1/rerank", query="q", documents=documents)
    async with stepped("a", "b", pooling="pairs") as served:
        lost: list[int] = []

        async def kill() -> None:
            await served.until(lambda: any(len(each.submits) > 20 for each in served.workers))
            (busiest, *_) = sorted(served.workers, key=lambda each: -len(each.submits))
            assert isinstance(busiest, EngineWorker)
            lost.append(sum(len(handle.live) for handle in served.router.pool if handle.name == busiest.name))
            busiest.die()
            busiest.come_back()

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            answer = await post(served.client, "/v1/rerank", query="q", documents=documents)
        assert answer["results"] == expected["results"]
        assert answer["usage"] == expected["usage"]
        submits = sum(len(each.submits) for each in served.workers)
        assert lost[0] > 0
        assert submits == len(documents) + lost[0]
