"""Encoders against transformers in float32: hidden states, pooled vectors and the scores of cross-encoders."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiling import compiling_here
from tests.workers.tiny_encoders import FIELDS, make_encoder, sequences
from workers.checkpoints.encoders.reading import read_encoder
from workers.engine.runner import Chunk, Runner
from workers.load_options import LoadOptions
from workers.pooling.checkpoint_default import default_pooling
from workers.pooling.checkpoint_pooling import CheckpointPooling
from workers.pooling.classifier import Classifier

pytestmark = pytest.mark.reference
COMPILED = ("bert", "gemma3_text", "modernbert")
"""Families whose graphs are compiled in each run: the others are combinations of what these have."""
CASES = [
    pytest.param(backend, family, marks=[pytest.mark.exhaustive] * (backend == "iree" and family not in COMPILED))
    for backend in ("iree", "mlx")
    for family in FIELDS
]
ERROR = 1e-5


def load(path: Path, backend: str, cache_dir: Path) -> Runner:
    config = read_encoder(path)
    options = LoadOptions(device="cpu" if backend == "mlx" else "local-task", slots=8, cache_dir=cache_dir)
    if backend == "mlx":
        pytest.importorskip("mlx.core")
        from workers.mlx.encoder.runner import MlxEncoderRunner

        return MlxEncoderRunner.load(path, config, options, lambda *progress: None)
    pytest.importorskip("iree.runtime")
    from workers.iree.encoder.runner import IreeEncoderRunner

    with compiling_here():
        return IreeEncoderRunner.load(path, config, options, lambda *progress: None, background=False)


def reference(path: Path, chunks: Sequence[Chunk], kind: str = "AutoModel") -> list[NDArray[np.float32]]:
    """Return the hidden states, or the logits, of each sequence by itself."""
    import torch
    import transformers

    made: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    causal = read_encoder(path).family == "llama_bidirec"  # transformers has the decoder alone
    if causal:
        fields = json.loads((path / "config.json").read_text()) | {"model_type": "llama"}
        made["config"], kind = transformers.LlamaConfig.from_dict(fields), "LlamaModel"
    model = getattr(transformers, kind).from_pretrained(path, **made).eval()
    found = []
    for chunk in chunks:
        types: dict[str, Any] = {}
        if causal:
            types["attention_mask"] = torch.zeros(1, 1, len(chunk.tokens), len(chunk.tokens))
        if chunk.token_types is not None:
            types["token_type_ids"] = torch.tensor([chunk.token_types])
        with torch.no_grad():
            out = model(torch.tensor([chunk.tokens]), **types)
        found.append((out.logits if "logits" in out else out.last_hidden_state)[0].numpy())
    return found


@pytest.mark.parametrize(("backend", "family"), CASES)
def test_hidden_states_are_those_of_transformers(tmp_path: Path, cache_dir: Path, backend: str, family: str) -> None:
    path = make_encoder(tmp_path, family)
    chunks = sequences(read_encoder(path).token_types)
    runner = load(path, backend, cache_dir)
    try:
        for ours, theirs in zip(runner.hidden(chunks), reference(path, chunks), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=ERROR, atol=ERROR)
    finally:
        runner.close()


SCORED = [("bert", 1, {}), ("gte", 1, {}), ("modernbert", 3, {"classifier_pooling": "mean"}), ("xlm-roberta", 1, {})]


@pytest.mark.parametrize(("family", "labels", "fields"), SCORED, ids=[family for family, _, _ in SCORED])
def test_scores_are_those_of_transformers(tmp_path: Path, family: str, labels: int, fields: dict[str, Any]) -> None:
    path = make_encoder(tmp_path, family, labels=labels, **fields)
    chunks = sequences(read_encoder(path).token_types)
    classifier, runner = Classifier.of(path), load(path, "mlx", tmp_path)
    assert classifier is not None
    try:
        rows = runner.hidden(chunks)
    finally:
        runner.close()
    theirs = reference(path, chunks, "AutoModelForSequenceClassification")
    pooling = default_pooling(path, 0, generates=False, classifier=classifier, labels=labels)
    assert pooling.label_names == tuple(f"L{label}" for label in range(labels))
    for hidden, logits in zip(rows, theirs, strict=True):
        ours = classifier.scores(hidden)
        np.testing.assert_allclose(ours, logits, atol=ERROR)
        assert len(ours) == classifier.labels == labels
        pooler = pooling.score_pooler(activate=False, probabilities=True)
        pooler.add(hidden)
        powers = np.exp(np.asarray([*logits, 0.0] if labels == 1 else logits, np.float64))
        np.testing.assert_allclose(pooler.vector(), (powers / powers.sum())[:labels], atol=ERROR)
        assert classifier.activation == ("sigmoid" if labels == 1 else "identity")


@pytest.mark.parametrize("family", ["bert", "gemma3_text"])
def test_vectors_are_those_of_the_formulas_of_sentence_transformers(tmp_path: Path, family: str) -> None:
    """Mean pooling over the attention mask, a dense module with tanh, and length 1, in torch; and EmbeddingGemma's
    two dense modules without biases."""
    import torch

    from tests.checkpoints import write_safetensors

    gemma = family == "gemma3_text"
    path = make_encoder(tmp_path, family)
    random = np.random.default_rng(3)
    widths = (32, 48, 16) if gemma else (32, 16)
    kinds = ("Transformer", "Pooling", *["Dense"] * (len(widths) - 1), "Normalize")
    modules = [
        {"idx": number, "path": f"{number}_{kind}" if number else "", "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    folders: list[tuple[str, dict[str, Any]]] = [("1_Pooling", pooling)]
    layers = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), 2):
        fields: dict[str, Any] = {"in_features": inputs, "out_features": outputs, "bias": not gemma}
        fields |= {"activation_function": "torch.nn.modules.linear.Identity"} if gemma else {}
        folders.append((f"{number}_Dense", fields))
        weights = {"linear.weight": random.standard_normal((outputs, inputs), np.float32)}
        weights |= {} if gemma else {"linear.bias": random.standard_normal(outputs, np.float32)}
        layers.append(weights)
    for folder, fields in folders:
        (path / folder).mkdir()
        (path / folder / "config.json").write_text(json.dumps(fields))
    for number, weights in enumerate(layers, 2):
        write_safetensors(path / f"{number}_Dense" / "model.safetensors", weights)
    found, chunks, runner = CheckpointPooling.of(path), sequences(), load(path, "mlx", tmp_path)
    assert (found.pooling.kind, found.pooling.normalize, found.width(32)) == ("mean", True, 16)
    try:
        rows = runner.hidden(chunks)
    finally:
        runner.close()
    for hidden, theirs in zip(rows, reference(path, chunks), strict=True):
        token_embeddings = torch.from_numpy(theirs)[None]
        mask = torch.ones(1, len(theirs), 1)
        mean = (token_embeddings * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        for weights in layers:
            tensors = [torch.from_numpy(each) for each in weights.values()]
            mean = torch.nn.functional.linear(mean, *tensors)
            mean = mean if gemma else torch.tanh(mean)
        vector = torch.nn.functional.normalize(mean, p=2, dim=1)[0].numpy()
        ours = found.project(hidden.mean(0))
        np.testing.assert_allclose(ours / np.linalg.norm(ours), vector, atol=ERROR)
