"""Rerankers that are decoders: their scores of pairs against transformers in float32."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.commands import Submit
from protocol.request import Limits, PairInput, Pooled, Sampling
from tests.checkpoints import make_checkpoint, make_tokenizer, write_safetensors
from tests.reference.encoders.test_served_encoders import ask
from workers.checkpoints.weights import SafetensorsWeights
from workers.engine.chunking import chunk_lengths
from workers.engine.runner import Chunk
from workers.pooling.checkpoint_default import default_pooling
from workers.pooling.last_token import last_token_classifier
from workers.pooling.pair_template import QWEN3, QWEN3_INSTRUCTION
from workers.process.backends import load_runner
from workers.process.prompts.pooled_prompts import PooledPrompts
from workers.process.prompts.prompt_encoder import PromptEncoder
from workers.process.prompts.refusal import PromptRefused
from workers.process.spec import WorkerSpec
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

pytestmark = pytest.mark.reference
QUERY = "what is a <|im_end|> token"
DOCUMENTS = ["it ends a turn", "yes", "a b c d e f g " * 3]
STOP = "<|im_end|>"
LONG = "the rain in the town " * 40
INSTRUCTION = "Find the definition"
TEMPLATE = """<|im_start|>{{ (messages | selectattr("role", "eq", "system") | map(attribute="content") | first) \
or "by default" }}
{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>"""
LOGIT_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    },
]


def make_reranker(path: Path, kind: str) -> Path:
    """Write a checkpoint: `original` as Qwen published it, with vLLM's fields; `logits` with sentence-transformers'
    files; `classifier` a sequence classifier."""
    fields: dict[str, Any] = {}
    if kind == "original":
        fields = {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True}
    make_checkpoint(path, "qwen3", vocab=512, tied=kind == "original", fields=fields)
    make_tokenizer(path, 510)
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    library.add_tokens(["yes", "no"])
    assert library.get_vocab_size() <= 512
    library.save(str(path / "tokenizer.json"))
    if kind == "original":
        return path
    (path / "chat_template.jinja").write_text(TEMPLATE)
    if kind == "logits":
        (path / "modules.json").write_text(json.dumps(LOGIT_MODULES))
        (path / "1_LogitScore").mkdir()
        ids = {"true_token_id": library.token_to_id("yes"), "false_token_id": None}
        (path / "1_LogitScore" / "config.json").write_text(json.dumps(ids))
        stated = {
            "activation_fn": "torch.nn.modules.linear.Identity",
            "prompts": {"web": INSTRUCTION},
            "default_prompt_name": "web",
        }
        (path / "config_sentence_transformers.json").write_text(json.dumps(stated))
        return path
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "relevant"}}
    (path / "config.json").write_text(json.dumps(config))
    weights = SafetensorsWeights(path, None)
    tensors = {name: weights[name] for name in weights if not name.startswith("lm_head")}
    tensors["score.weight"] = np.random.default_rng(7).standard_normal((1, 64), np.float32)
    write_safetensors(path / "model.safetensors", tensors)
    return path


def pieces(path: Path, kind: str, document: str, instruction: str) -> list[tuple[str, bool]]:
    """Return a prompt in pieces, and of each whether its control tokens are such."""
    if kind == "original":
        begin, before_query, before_document, end = QWEN3
        texts = [begin, instruction or QWEN3_INSTRUCTION, before_query, QUERY, before_document, document, end]
        return [(text, not at % 2) for at, text in enumerate(texts)]
    chosen = instruction or (INSTRUCTION if kind == "logits" else "by default")
    return [("<|im_start|>", True), (f"{chosen}\n{QUERY}\n{document}", False), ("<|im_end|>", True)]


def tokens_of(path: Path, kind: str, document: str, instruction: str = "") -> list[int]:
    """Return the tokens of a prompt by the library alone. The control token of the query is text."""
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    own = pieces(path, kind, document, instruction)
    marked = "".join(part if control else part.replace(STOP, "\ue000") for part, control in own)
    before, _, after = marked.partition("\ue000")
    library.encode_special_tokens = True
    ordinary = library.encode(STOP).ids
    assert len(ordinary) > 1
    library.encode_special_tokens = False
    return [*library.encode(before).ids, *ordinary, *library.encode(after).ids]


def theirs(path: Path, kind: str, prompts: Sequence[Sequence[int]]) -> list[float]:
    """Return the scores of prompts: as in the model card, of sentence-transformers' `LogitScore`, and of the class."""
    import torch
    import transformers

    name = "AutoModelForSequenceClassification" if kind == "classifier" else "AutoModelForCausalLM"
    model = getattr(transformers, name).from_pretrained(path, dtype=torch.float32).eval()
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    yes, no = library.token_to_id("yes"), library.token_to_id("no")
    scores = []
    for tokens in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits
        if kind == "classifier":
            scores.append(float(torch.sigmoid(logits[0, 0])))
        elif kind == "logits":
            scores.append(float(logits[0, -1, yes]))
        else:
            both = torch.stack([logits[0, -1, no], logits[0, -1, yes]])
            scores.append(float(torch.nn.functional.log_softmax(both, dim=0)[1].exp()))
    return scores


class Reranker:
    """A loaded checkpoint, without the server around it."""

    def __init__(self, path: Path, backend: str, cache_dir: Path) -> None:
        device = "cpu" if backend == "mlx" else "local-task"
        spec = WorkerSpec(
            "w0", "m", str(path), backend=backend, device=device, dtype="float32", context=512, cache_dir=str(cache_dir)
        )
        tokenizer = CheckpointTokenizer.from_dir(path)
        classifier = last_token_classifier(path, tokenizer)
        assert classifier is not None
        self.pooling = default_pooling(
            path, 64, generates=False, classifier=classifier, labels=1, template=classifier.template
        )
        self._prompts = PooledPrompts(PromptEncoder(tokenizer, 512), 512, self.pooling)
        self.runner = load_runner(spec, lambda *_: None)

    def tokens(self, document: str, **pooled: Any) -> tuple[int, ...]:
        wanted = Pooled("scores", **pooled)
        submit = Submit(1, "r", PairInput(QUERY, document), Sampling(), Limits(max_tokens=0), pooled=wanted)
        return self._prompts.build(submit, wanted)[0]

    def score(self, tokens: tuple[int, ...]) -> float:
        """Return the score, of hidden states in two chunks."""
        self.runner.reset(0)
        pooler, half = self.pooling.score_pooler(activate=True), len(tokens) // 2
        for start, end in ((0, half), (half, len(tokens))):
            for size in chunk_lengths(end - start, self.runner.capabilities.prefill_chunks):
                (rows,) = self.runner.hidden([Chunk(0, tokens[start : start + size], start, start)])
                pooler.add(rows)
                start += size
        return float(pooler.vector()[0])


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *(("mlx", kind) for kind in ("classifier", "logits", "original")),
        *(pytest.param("iree", kind, marks=pytest.mark.exhaustive) for kind in ("classifier", "original")),
    ],
)
def test_scores_are_those_of_transformers(tmp_path: Path, cache_dir: Path, backend: str, kind: str) -> None:
    pytest.importorskip({"iree": "iree.runtime", "mlx": "mlx.core"}[backend])
    path = make_reranker(tmp_path, kind)
    model = Reranker(path, backend, cache_dir)
    try:
        for instruction in ("", "judge by"):
            prompts = [model.tokens(document, instruction=instruction) for document in DOCUMENTS]
            expected = [tokens_of(path, kind, document, instruction) for document in DOCUMENTS]
            assert [list(tokens) for tokens in prompts] == expected
            scores = theirs(path, kind, expected)
            assert max(scores) - min(scores) > 1e-4
            assert [model.score(tokens) for tokens in prompts] == pytest.approx(scores, abs=1e-5)
        # The end of the longer text is left out, and the form around the texts stays.
        whole = tokens_of(path, kind, LONG)
        room = len(tokens_of(path, kind, "a")) + 40
        truncated = model.tokens(LONG, truncate=room)
        assert room - 4 <= len(truncated) <= room < len(whole)
        same = next(at for at, (one, other) in enumerate(zip(truncated, whole, strict=False)) if one != other)
        assert list(truncated[same:]) == whole[-(len(truncated) - same) :]
        with pytest.raises(PromptRefused, match="without the texts"):
            model.tokens(LONG, truncate=3)
    finally:
        model.runner.close()


@pytest.mark.parametrize("backend", ["mlx", pytest.param("iree", marks=pytest.mark.exhaustive)])
def test_a_reranker_is_served(tmp_path: Path, cache_dir: Path, backend: str) -> None:
    path = make_reranker(tmp_path, "original")
    ranked, scored = ask(
        path,
        backend,
        cache_dir,
        [
            ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "instruction": "judge by"}),
            ("/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS}),
        ],
    )
    prompts = [tokens_of(path, "original", document) for document in DOCUMENTS]
    expected = theirs(path, "original", prompts)
    assert [each["score"] for each in scored["data"]] == pytest.approx(expected, abs=1e-5)
    assert scored["usage"]["prompt_tokens"] == sum(map(len, prompts))
    other = theirs(path, "original", [tokens_of(path, "original", each, "judge by") for each in DOCUMENTS])
    assert [each["index"] for each in ranked["results"]] == sorted(range(3), key=lambda at: -other[at])
    best = ranked["results"][0]
    assert best["relevance_score"] == pytest.approx(max(other), abs=1e-5)
