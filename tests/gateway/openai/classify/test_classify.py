"""Labels of texts."""

import math
from typing import Any

import pytest

from protocol.events import Capabilities
from tests.gateway.harness.engines import EngineWorker
from tests.gateway.harness.serving import serving
from tests.gateway.openai.embeddings.stepped import stepped

pytestmark = pytest.mark.anyio


async def test_texts_get_the_label_of_the_highest_probability() -> None:
    texts = ["a question", "Bread is baked.", "x"]
    async with stepped(pooling="labels") as served:
        response = await served.client.post("/v1/classify", json={"input": texts})
        logits = await served.client.post("/classify", json={"input": texts, "use_activation": False})
        single = await served.client.post("/v1/classify", json={"model": "tiny", "input": "x", "softmax": True})
        ids = await served.client.post("/v1/classify", json={"model": "tiny", "input": [[120]]})
        listed = (await served.client.get("/v1/models")).json()["data"][0]["capabilities"]
    answer = response.json()
    assert (response.status_code, answer["object"], answer["id"][:9]) == (200, "list", "classify-")
    assert (answer["model"], answer["usage"]["prompt_tokens"]) == ("tiny", sum(map(len, texts)))
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    for each, plain in zip(answer["data"], logits.json()["data"], strict=True):
        assert each["num_classes"] == 2
        powers = [math.exp(logit - max(plain["probs"])) for logit in plain["probs"]]
        assert each["probs"] == pytest.approx([power / sum(powers) for power in powers], rel=1e-5)
        assert each["label"] == plain["label"] == ("other", "spam")[plain["probs"][1] > 0]
    assert [each.json()["data"][0]["probs"] for each in (single, ids)] == [answer["data"][2]["probs"]] * 2
    assert (listed["labels"], listed["rerank"]) == (["other", "spam"], None)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({}, "input", "required"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": "b" * 5000}, "input", "4096"),
        ({"messages": []}, "messages", "not classified"),
        ({"input": "a", "softmax": False}, "softmax", "supported"),
        ({"input": "a", "priority": 3}, "priority", "supported"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 and up"),
        ({"input": "a", "labels": ["a"]}, "labels", "not a parameter"),
    ],
    ids=["none", "empty", "many", "long", "messages", "softmax", "priority", "truncation", "unknown"],
)
async def test_refusals_name_the_field(fields: dict[str, Any], param: str, text: str) -> None:
    async with stepped(pooling="labels") as served:
        response = await served.client.post("/v1/classify", json={"model": "tiny"} | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), error
        assert text in error["message"]


async def test_a_classifier_with_several_labels_ranks_nothing_and_the_error_names_its_endpoint() -> None:
    async with stepped(pooling="labels") as served:
        response = await served.client.post("/v1/rerank", json={"query": "q", "documents": ["a"]})
    assert response.json()["error"]["message"].endswith("has 2 labels, not one score: use /v1/classify, or another one")


async def test_a_model_without_labels_is_named() -> None:
    async with serving() as served:
        response = await served.client.post("/classify", json={"model": "tiny", "input": "a"})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, "model", "unsupported")


async def test_a_worker_refuses_single_texts_of_a_model_that_takes_pairs_alone() -> None:
    async with stepped(pooling="pairs") as served:
        worker = served.worker
        assert isinstance(worker, EngineWorker)
        ready = worker.status.ready
        assert ready is not None
        worker.change(ready=type(ready)(Capabilities(pairs=True, labels=1, label_names=("a",))))
        response = await served.client.post("/v1/classify", json={"input": "a"})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "input")
        assert "scores pairs of texts" in error["message"]
