"""Ollama's endpoints for embeddings."""

from typing import Any

import pytest

from tests.gateway.harness.engines import WIDTH
from tests.gateway.openai.embeddings.stepped import stepped

pytestmark = pytest.mark.anyio


async def test_both_endpoints_give_the_vectors_of_the_openai_one() -> None:
    async with stepped() as served:
        client = served.client
        texts = ["a text", "b" * 5000]
        body: dict[str, Any] = {"model": "tiny:latest", "input": texts, "keep_alive": "5m", "options": {"num_ctx": 64}}
        both = (await client.post("/api/embed", json=body)).json()
        assert (both["model"], both["prompt_eval_count"]) == ("tiny:latest", 6 + 4096)  # one is truncated
        openai = {"model": "tiny", "input": texts, "truncate_prompt_tokens": -1}
        expected = [each["embedding"] for each in (await client.post("/v1/embeddings", json=openai)).json()["data"]]
        assert both["embeddings"] == expected
        one = (await client.post("/api/embed", json={"model": "tiny", "input": "a text", "dimensions": 2})).json()
        assert [len(each) for each in one["embeddings"]] == [2]
        old = (await client.post("/api/embeddings", json={"model": "tiny", "prompt": "a text"})).json()["embedding"]
        length = sum(each * each for each in old) ** 0.5
        assert length != pytest.approx(1)
        assert [each / length for each in old] == pytest.approx(expected[0])
        assert len(old) == WIDTH


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/api/embed", {"input": ["a", ""]}, "`input[1]` is empty"),
        ("/api/embed", {"input": "b" * 5000, "truncate": False}, "`input`: the text has 5000"),
        ("/api/embed", {"input": "a", "dimensions": 9}, "4 numbers"),
        ("/api/embed", {"input": "b" * 5000, "truncate": False, "options": {"num_ctx": 9999}}, "the text has 5000"),
        ("/api/embeddings", {"prompt": ""}, "`prompt` is empty"),
    ],
)
async def test_refusals_name_the_field(path: str, fields: dict[str, Any], text: str) -> None:
    async with stepped() as served:
        response = await served.client.post(path, json={"model": "tiny"} | fields)
        assert response.status_code == 400
        assert text in response.json()["error"]


async def test_an_encoder_is_shown_as_one() -> None:
    async with stepped(pooling="encoder") as served:
        shown = (await served.client.post("/api/show", json={"model": "tiny"})).json()
        assert shown["capabilities"] == ["embedding"]
