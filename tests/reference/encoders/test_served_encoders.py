"""`baton serve` of encoders: what clients get over HTTP, against transformers in float32."""

import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.commands.test_serve import read_until, serving, url_of
from tests.reference.encoders.test_encoders import reference
from tests.workers.text.test_pairs import wordpiece
from tests.workers.tiny_encoders import make_encoder
from workers.engine.runner import Chunk
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

pytestmark = pytest.mark.reference
QUERY = "what is it"
DOCUMENTS = ["it's embedding!", "is", "what what what", "embedding " * 9]
LONG = "embedding " * 60
BACKENDS = ["mlx", pytest.param("iree", marks=pytest.mark.exhaustive)]


def ask(path: Path, backend: str, cache_dir: Path, requests: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the answers of a server of one checkpoint, to requests one after the other."""
    pytest.importorskip({"iree": "iree.runtime", "mlx": "mlx.core"}[backend])
    words = ["-m", "cli", "serve", str(path), "--name", "encoder", "--port", "0", "--backend", backend]
    words += ["--dtype", "float32", "--cache-dir", str(cache_dir)] + (["--device", "cpu"] if backend == "mlx" else [])
    with serving(words) as process:
        url, answers = url_of(read_until(process, "ready")), []
        with httpx.Client(base_url=url, timeout=60) as client:
            for endpoint, body in requests:
                response = client.post(endpoint, json={"model": "encoder"} | body)
                assert response.status_code == 200, response.text
                answers.append(response.json())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    return answers


def pairs(path: Path, documents: list[str]) -> list[Chunk]:
    tokenizer = CheckpointTokenizer.from_dir(path)
    encoded = [tokenizer.encode_pair(QUERY, document) for document in documents]
    return [Chunk(slot, tuple(ids), 0, 0, token_types=tuple(types)) for slot, (ids, types) in enumerate(encoded)]


def sigmoid(logits: list[NDArray[np.float32]]) -> list[float]:
    return [float(1 / (1 + np.exp(-each[0]))) for each in logits]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cross_encoder_ranks_as_transformers_scores(tmp_path: Path, cache_dir: Path, backend: str) -> None:
    path = make_encoder(tmp_path, "bert", labels=1)
    wordpiece(path)
    ranked, scored, truncated, classified = ask(
        path,
        backend,
        cache_dir,
        [
            ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "return_documents": True}),
            ("/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS}),
            ("/v1/rerank", {"query": QUERY, "documents": [LONG], "truncate_prompt_tokens": 30}),
            ("/v1/classify", {"input": DOCUMENTS}),
        ],
    )
    chunks = pairs(path, DOCUMENTS)
    theirs = sigmoid(reference(path, chunks, "AutoModelForSequenceClassification"))
    assert [each["score"] for each in scored["data"]] == pytest.approx(theirs, abs=1e-5)
    best = sorted(range(len(theirs)), key=lambda index: -theirs[index])
    assert [each["index"] for each in ranked["results"]] == best
    assert [each["document"]["text"] for each in ranked["results"]] == [DOCUMENTS[index] for index in best]
    assert {each["index"]: each["relevance_score"] for each in ranked["results"]} == dict(
        enumerate(each["score"] for each in scored["data"])
    )
    assert ranked["usage"]["prompt_tokens"] == sum(len(chunk.tokens) for chunk in chunks)
    # The document alone is longer: it loses its end, and the last special token stays.
    (whole,) = pairs(path, [LONG])
    assert whole.token_types is not None
    kept = Chunk(0, (*whole.tokens[:29], whole.tokens[-1]), 0, 0, token_types=whole.token_types[:30])
    (expected,) = sigmoid(reference(path, [kept], "AutoModelForSequenceClassification"))
    assert truncated["results"][0]["relevance_score"] == pytest.approx(expected, abs=1e-5)
    assert truncated["usage"]["prompt_tokens"] == 30
    tokenizer = CheckpointTokenizer.from_dir(path)
    texts = [Chunk(slot, tuple(tokenizer.encode(text, special=True)), 0, 0) for slot, text in enumerate(DOCUMENTS)]
    probabilities = sigmoid(reference(path, texts, "AutoModelForSequenceClassification"))
    assert [each["probs"][0] for each in classified["data"]] == pytest.approx(probabilities, abs=1e-5)
    assert {each["label"] for each in classified["data"]} == {"L0"}


@pytest.mark.exhaustive
def test_an_encoder_embeds_as_transformers_pools(tmp_path: Path, cache_dir: Path) -> None:
    """Vectors and cosines of one server, and the same bits alone and in a batch."""
    path = make_encoder(tmp_path, "modernbert")
    wordpiece(path)
    batch, alone, ranked = ask(
        path,
        "mlx",
        cache_dir,
        [
            ("/v1/embeddings", {"input": [QUERY, *DOCUMENTS]}),
            ("/api/embed", {"input": DOCUMENTS[3]}),
            ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ],
    )
    tokenizer = CheckpointTokenizer.from_dir(path)
    texts = [tuple(tokenizer.encode(text, special=True)) for text in (QUERY, *DOCUMENTS)]
    vectors = []
    for hidden in reference(path, [Chunk(slot, tokens, 0, 0) for slot, tokens in enumerate(texts)]):
        mean = hidden.mean(0)
        vectors.append(mean / np.linalg.norm(mean))
    for given, vector in zip(batch["data"], vectors, strict=True):
        np.testing.assert_allclose(given["embedding"], vector, atol=1e-5)
    assert alone["embeddings"] == [batch["data"][4]["embedding"]]
    cosines = {each["index"]: each["relevance_score"] for each in ranked["results"]}
    expected = [float(vectors[0] @ each) for each in vectors[1:]]
    assert [cosines[index] for index in range(4)] == pytest.approx(expected, abs=1e-5)
