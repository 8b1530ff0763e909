"""`prompt_embeds`: what is decoded, what is refused, and answers that survive the loss of a worker."""

import base64
import json
import os
import signal
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from gateway.errors import RequestError
from gateway.fleet.launch import WorkerLaunch
from gateway.openai.completions.embedded_prompts import MAX_HEADER, embedded_prompt
from protocol.bounds import MAX_EMBEDDING_BYTES
from protocol.request import EmbeddingRows, Limits, Sampling
from tests.gateway.harness.real import command_of, gather, real_gateway
from tests.gateway.openai.bodies import completion, refusal
from tests.pids import pid_of
from workers.local_model import LocalModel, mixed_prompt
from workers.process.spec import ScriptedSpec, WorkerSpec

ROWS = np.arange(24, dtype=np.float32).reshape(3, 8)


def encoded(header: Any, data: bytes = b"", *, length: int | None = None) -> str:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return base64.b64encode(struct.pack("<Q", len(text) if length is None else length) + text + data).decode()


def tensor(dtype: str = "F32", shape: Any = (1, 2), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(rows: Any) -> str:
    return base64.b64encode(safetensors.numpy.save({"rows": rows}, metadata={"format": "np"})).decode()


def test_the_rows_of_a_file_are_the_prompt() -> None:
    (sequence,) = completion(prompt=None, prompt_embeds=file_of(ROWS)).sequences
    assert sequence.input == embedded_prompt(file_of(ROWS))
    assert embedded_prompt(file_of(ROWS)).segments == (EmbeddingRows("float32", 8, ROWS.tobytes()),)
    half = embedded_prompt(file_of(ROWS.astype(np.float16))).segments
    assert half == (EmbeddingRows("float16", 8, ROWS.astype(np.float16).tobytes()),)
    upper = (ROWS.view(np.uint32) >> 16).astype("<u2").tobytes()
    words = encoded({"a": tensor("BF16", [3, 8], [0, 48])}, upper)
    assert embedded_prompt(words).segments == (EmbeddingRows("bfloat16", 8, upper),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no base64!", "is not base64"),
        ("", "is not safetensors"),
        (base64.b64encode(b"\x80\x04K\x01.").decode(), "is not safetensors"),
        (encoded(b"{}", length=1 << 40), "is not safetensors"),
        (encoded(b" " * MAX_HEADER + b"{}"), f"a header of up to {MAX_HEADER} bytes"),
        (encoded(b"[]"), "its header is not one"),
        (encoded({"a": {"dtype": "F32"}}), "its header is not one"),
        (encoded({"a": tensor() | {"indices": [1 << 60]}}, bytes(8)), "its header is not one"),
        (encoded({}), "has 0 tensors"),
        (encoded({"a": tensor(), "b": tensor()}, bytes(8)), "has 2 tensors"),
        (encoded({"a": tensor("I64", (1, 1))}, bytes(8)), "has the type 'I64': give one of BF16, F16, F32"),
        (encoded({"a": tensor(shape=[2])}, bytes(8)), "has 1 dimensions"),
        (encoded({"a": tensor(shape=[0, 2])}, b""), "its header is not one"),
        (encoded({"a": tensor(shape=[1 << 20, 1 << 20])}, bytes(8)), f"{MAX_EMBEDDING_BYTES} are allowed"),
        (encoded({"a": tensor(offsets=[0, 4])}, bytes(8)), "must be all that follows"),
        (encoded({"a": tensor(offsets=[-8, 0])}, bytes(8)), "must be all that follows"),
        (encoded({"a": tensor()}, bytes(7)), "must be all that follows"),
        (encoded({"a": tensor()}, bytes(9)), "must be all that follows"),
    ],
)
def test_what_is_no_file_of_rows_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as error:
        embedded_prompt(text)
    assert error.value.field == "prompt_embeds"


def test_as_many_bytes_as_allowed_are_taken() -> None:
    width = 1 << 14
    count = MAX_EMBEDDING_BYTES // (4 * width)
    most = encoded({"a": tensor(shape=[count, width], offsets=[0, MAX_EMBEDDING_BYTES])}, bytes(MAX_EMBEDDING_BYTES))
    assert embedded_prompt(most).count == count
    more = encoded({"a": tensor(shape=[count + 1, width], offsets=[0, 8])}, bytes(8))
    with pytest.raises(RequestError, match="are allowed"):
        embedded_prompt(more)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": "text"}, "prompt"),
        ({"prompt": [1]}, "prompt"),
        ({"prompt": None, "suffix": "x"}, "suffix"),
        ({"prompt": None, "echo": True}, "echo"),
        ({"prompt": None, "prompt_logprobs": 0}, "prompt_logprobs"),
    ],
)
def test_what_needs_a_text_is_refused(fields: dict[str, Any], field: str) -> None:
    assert refusal(completion, prompt_embeds=file_of(ROWS), **fields).field == field


def test_a_prompt_of_some_kind_is_required() -> None:
    assert refusal(completion, prompt=None).field == "prompt"


def launch(name: str, *, embeddings: bool, rate: float = 0.0) -> WorkerLaunch:
    scripted = ScriptedSpec(tokens_per_second=rate)
    spec = WorkerSpec(name, "tiny", "", backend="scripted", embeddings=embeddings, log_level="error", scripted=scripted)
    return WorkerLaunch(name, "tiny", command_of(spec))


BODY = {"model": "tiny", "prompt_embeds": file_of(ROWS), "max_tokens": 60, "temperature": 1.0, "seed": 3}


@pytest.mark.anyio
async def test_an_answer_to_embeddings_survives_the_loss_of_its_worker() -> None:
    with LocalModel.load("", backend="scripted", embeddings=True) as model:
        expected = model.generate(mixed_prompt(ROWS), Sampling(temperature=1.0, seed=3), Limits(max_tokens=60))
    async with real_gateway(launch("w0", embeddings=True, rate=200)) as real:

        async def kill() -> None:
            await real.until(
                lambda: any(stream.tokens for handle in real.router.pool for stream in handle.live.values()),
                lambda: os.kill(pid_of(real.status()), signal.SIGKILL),
            )

        answer, _ = await gather(lambda: real.client.post("/v1/completions", json=BODY), kill)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == expected.text
        assert answer.json()["usage"]["prompt_tokens"] == len(ROWS)
        assert real.status().incarnation == 2
        (known,) = (await real.client.get("/v1/models")).json()["data"]
        assert known["capabilities"]["prompt_embeds"] == 8


@pytest.mark.anyio
async def test_a_model_without_the_option_refuses_embeddings_by_name() -> None:
    async with real_gateway(launch("w0", embeddings=False)) as real:
        answer = await real.client.post("/v1/completions", json=BODY)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt_embeds"
        assert "--enable-prompt-embeds" in answer.json()["error"]["message"]
        (known,) = (await real.client.get("/v1/models")).json()["data"]
        assert known["capabilities"]["prompt_embeds"] == 0
