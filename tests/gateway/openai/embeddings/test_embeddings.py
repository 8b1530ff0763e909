"""Embeddings through the gateway and a worker's engine: formats, batches, refusals, limits, and a worker that dies."""

import base64
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from gateway.generation.pooled.texts import MAX_INPUTS
from gateway.keys.record import KeyLimits, KeyRecord
from protocol.errors import ErrorCode
from tests.gateway.harness.engines import LETTERS, WIDTH, EngineWorker
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.serving import serving
from tests.gateway.openai.embeddings.stepped import stepped
from workers.engine.runner import Chunk
from workers.scripted.runner import ScriptedRunner

pytestmark = pytest.mark.anyio
URL = "/v1/embeddings"
KEY = "sk-a-key-of-a-client"


async def post(client: httpx.AsyncClient, path: str = URL, **body: Any) -> Any:
    response = await client.post(path, json={"model": "tiny"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer: Any) -> list[list[float]]:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"] for each in answer["data"]]


async def test_formats_and_options_of_a_vector() -> None:
    async with stepped() as served:
        client = served.client
        (plain,) = vectors(answer := await post(client, input="a text"))
        assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
        assert len(plain) == WIDTH
        assert sum(each * each for each in plain) == pytest.approx(1)
        tokens = list(b"a text")
        assert vectors(await post(client, input=tokens)) == [plain]
        assert vectors(await post(client, input=[tokens, tokens])) == [plain, plain]
        packed = (await post(client, input="a text", encoding_format="base64"))["data"][0]["embedding"]
        assert list(struct.unpack(f"<{WIDTH}f", base64.b64decode(packed))) == plain
        (raw,) = vectors(await post(client, input="a text", normalize=False))
        length = sum(each * each for each in raw) ** 0.5
        assert [each / length for each in raw] == pytest.approx(plain)
        (short,) = vectors(await post(client, input="a text", dimensions=2))
        size = (raw[0] ** 2 + raw[1] ** 2) ** 0.5
        assert short == pytest.approx([raw[0] / size, raw[1] / size])
        truncated = await post(client, input="a text", truncate_prompt_tokens=3)
        assert vectors(truncated) == vectors(await post(client, input="a t"))
        assert truncated["usage"]["prompt_tokens"] == 3
        for name in ("prompt_name", "input_type"):
            named = await post(client, input="a text", **{name: "query"})
            assert vectors(named) == vectors(await post(client, input="query: a text"))


async def test_the_openai_client_embeds_the_largest_batch() -> None:
    """Its default is base64. The texts come to the worker a few at a time, and in any order of ends."""
    texts = [f"text {number}" for number in range(MAX_INPUTS)]
    async with stepped(slots=3) as served:
        base = f"http://127.0.0.1:{served.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            answer = await client.embeddings.create(model="tiny", input=texts)
            assert answer.usage.prompt_tokens == sum(map(len, texts))
            assert [each.index for each in answer.data] == list(range(MAX_INPUTS))
            assert all(len(each.embedding) == WIDTH for each in answer.data)
            for place in (0, 1000, MAX_INPUTS - 1):
                one = await client.embeddings.create(model="tiny", input=texts[place], encoding_format="float")
                assert one.data[0].embedding == answer.data[place].embedding
            with pytest.raises(openai.BadRequestError, match="2049 texts") as refused:
                await client.embeddings.create(model="tiny", input=[*texts, "one more"])
        assert refused.value.param == "input"
        assert served.live == 0
        assert served.router.is_idle
        assert served.router.bodies.held == 0


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": [[1], []]}, "input[1]", ""),
        ({"input": ["a", "b" * 5000]}, "input[1]", "4096"),
        ({"input": ["b" * 4097]}, "input[0]", "4097 tokens"),
        ({"input": [[1, 2], [3, 999]]}, "input[1]", "999"),
        ({"input": "a", "dimensions": 5}, "dimensions", "4 numbers"),
        ({"input": "a", "dimensions": 0}, "dimensions", ""),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 and up"),
        ({"input": "a", "prompt_name": "other"}, "prompt_name", "document, query"),
        ({"input": "a", "input_type": "other"}, "input_type", "document, query"),
        ({"input": "a", "input_type": "query", "prompt_name": "document"}, "input_type", "differ"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages", "send the text in `input`"),
        ({}, "input", "required"),
    ],
)
async def test_refusals_name_the_field_and_the_place(fields: dict[str, Any], param: str, text: str) -> None:
    async with stepped() as served:
        response = await served.client.post(URL, json={"model": "tiny"} | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), error
        assert text in error["message"]
        assert len(vectors(await post(served.client, input="b" * 4096))) == 1  # the whole context


async def test_each_model_is_refused_what_it_cannot_do() -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with stepped(pooling="encoder") as served:
        assert len(vectors(await post(served.client, input=["a", "b"]))) == 2
        for path, body, param in (
            ("/v1/chat/completions", chat, "messages"),
            ("/v1/completions", {"model": "tiny", "prompt": "hi"}, "prompt"),
        ):
            response = await served.client.post(path, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (400, param, "unsupported")
            assert "/v1/embeddings" in error["message"]
        known = (await served.client.get("/v1/models/tiny")).json()["capabilities"]
        assert (known["embeddings"], known["embedding_width"], known["generates"]) == (True, WIDTH, False)
        assert known["embedding_prompts"] == ["document", "query"]
        can = [name for name, value in known.items() if value is True]
        assert (can, known["rerank"]) == (["embeddings"], "embeddings")
    async with stepped(pooling="pairs") as served:
        response = await served.client.post(URL, json={"model": "tiny", "input": "a"})
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("input", "unsupported")
        response = await served.client.post("/v1/chat/completions", json=chat)
        assert response.json()["error"]["message"].endswith("no text: send texts to /v1/rerank or /v1/score")
        known = (await served.client.get("/v1/models/tiny")).json()["capabilities"]
        assert (known["embeddings"], known["rerank"]) == (False, "cross-encoder")


async def test_another_worker_computes_the_same_vectors() -> None:
    texts = [f"text {number} " * 9 for number in range(80)]
    async with stepped() as served:
        expected = await post(served.client, input=texts)
    async with stepped("a", "b") as served:

        async def kill() -> None:
            await served.until(lambda: any(len(each.submits) > 34 for each in served.workers))
            (busiest, *_) = sorted(served.workers, key=lambda each: -len(each.submits))
            assert isinstance(busiest, EngineWorker)
            assert served.live
            busiest.die()
            busiest.come_back()

        async with anyio.create_task_group() as group:
            group.start_soon(kill)
            answer = await post(served.client, input=texts)
        assert vectors(answer) == vectors(expected)
        assert answer["usage"] == expected["usage"]


async def test_a_client_that_leaves_ends_its_texts() -> None:
    async with stepped(slots=1) as served:
        with anyio.move_on_after(0.05):
            await post(served.client, input=["long text " * 100] * 500)
        await served.until(lambda: served.router.is_idle)
        assert len(served.worker.submits) < 500
        assert len(vectors(await post(served.client, input="a"))) == 1


async def test_texts_that_no_worker_gets_are_never_made() -> None:
    """A batch is neither made nor cancelled in one turn of the event loop: only what is admitted exists."""
    async with serving(make=lambda name: FakeWorker(name, slots=4)) as served:
        for ending in ("client leaves", "text fails"):
            with anyio.move_on_after(10) as scope:
                async with anyio.create_task_group() as group:
                    body = {"model": "tiny", "input": ["a"] * MAX_INPUTS}
                    group.start_soon(partial(served.client.post, URL, json=body))
                    await served.until(lambda: served.router.sequences() != [])
                    assert len(served.router.sequences()) == 32
                    if ending == "client leaves":
                        scope.cancel()
                    else:
                        served.worker.fail(served.router.sequences()[0].submit.stream, ErrorCode.INTERNAL)
            await served.until(lambda: served.router.is_idle)
            for submit in served.worker.submits:  # which may still read the texts until then
                served.worker.finish(submit.stream)
            await served.until(lambda: not served.router.bodies.held)
        text = (await served.client.get("/metrics")).text
        ends = [line for line in text.splitlines() if line.startswith("baton_sequences_ended_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in ends) == 64


async def test_keys_are_charged_for_tokens(tmp_path: Path) -> None:
    """A key with a limit of tokens is refused the request that goes beyond it."""
    limits = KeyLimits(tokens_per_minute=100)
    record = KeyRecord(name="k", sha256=sha256(KEY.encode()).hexdigest(), created=datetime.now(UTC), limits=limits)
    keys = tmp_path / "keys"
    keys.write_text(record.line() + "\n")
    keys.chmod(0o600)
    async with stepped(api_keys_file=str(keys)) as served:
        served.client.headers["authorization"] = f"Bearer {KEY}"
        await post(served.client, input="x" * 60)
        refused = await served.client.post(URL, json={"model": "tiny", "input": ["x" * 60] * 3})
        assert refused.status_code == 429


async def test_texts_are_counted_by_metrics() -> None:
    async with stepped() as served:
        await post(served.client, input=["abc", "de"])
        text = (await served.client.get("/metrics")).text
        lines = [line for line in text.splitlines() if 'path="/v1/embeddings"' in line or "prompt_tokens_sum" in line]
        assert any("prompt_tokens_sum" in line and line.endswith(" 5.0") for line in lines), lines


class NotFiniteRunner(ScriptedRunner):
    """The hidden states of texts that begin with z are not finite."""

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        states = super().hidden(chunks)
        return [
            rows * np.nan if chunk.tokens[0] == ord("z") else rows for chunk, rows in zip(chunks, states, strict=True)
        ]


async def test_numbers_that_are_not_finite_are_an_error() -> None:
    """Never a null among the numbers of a vector; other texts are computed."""
    async with stepped(runner=lambda: NotFiniteRunner(slots=4, hidden_width=WIDTH, alphabet=LETTERS)) as served:
        for given in ("z", ["a", "z"]):
            response = await served.client.post(URL, json={"model": "tiny", "input": given})
            assert (response.status_code, response.json()["error"]["code"]) == (500, "not_finite"), response.text
        assert len(vectors(await post(served.client, input=["a", "b"]))) == 2


async def test_a_draining_gateway_finishes_the_batch_that_it_has() -> None:
    """Texts that no worker has yet are computed as well, and further requests are refused."""
    async with stepped() as served:
        texts = [f"text {number}" for number in range(80)]

        async def drain() -> None:
            await served.until(lambda: 34 < len(served.worker.submits) < 80)
            served.router.admission.drain_nowait()

        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            assert len(vectors(await post(served.client, input=texts))) == 80
        refused = await served.client.post(URL, json={"model": "tiny", "input": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
