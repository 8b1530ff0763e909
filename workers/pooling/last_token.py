"""Scores of pairs of texts by decoders: from the hidden state of the last token alone.

A sequence classifier has a matrix of its own (`score`). Other decoders are rerankers by the logits of one or two
tokens, such as "yes" and "no": sentence-transformers' files state them in the module `LogitScore`, and config.json in
the fields that vLLM calls `classifier_from_token`, `is_original_qwen3_reranker` and `method`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from workers.checkpoints.architectures.config import CLASSIFIER, SCORE, ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.documents import find_document, read_fields
from workers.checkpoints.json_files import CheckpointError, read_json
from workers.pooling.checkpoint_pooling import LOGIT_SCORE, modules_of
from workers.pooling.classifier import Rows, ScoreActivation, named_activation, score_activation
from workers.pooling.pair_template import QWEN3, QWEN3_INSTRUCTION, PairTemplate, has_pair_roles
from workers.text.tokenizer import Tokenizer

TOKENS, ORIGINAL, METHOD = "classifier_from_token", "is_original_qwen3_reranker", "method"
"""vLLM's fields."""
TWO_WAY = "from_2_way_softmax"


@dataclass(frozen=True, slots=True, eq=False)
class LastTokenClassifier:
    """Implements `workers.pooling.pooler.TextClassifier`."""

    rows: Rows
    """float32 [logits, hidden]."""
    activation: ScoreActivation
    difference: bool = False
    """The score is the first of two logits less the second one, whose sigmoid is the softmax of both."""
    divisor: float = 1.0
    cap: float | None = None
    """The model's own divisor and soft cap of logits."""
    template: PairTemplate | None = None
    """The form of a pair; None is both texts by the tokenizer's form for pairs."""
    last: ClassVar[bool] = True

    @property
    def labels(self) -> int:
        """The number of scores."""
        return 1 if self.difference else len(self.rows)

    def scores(self, hidden_rows: Rows) -> Rows:
        """Return the logits, float32 [labels], by the hidden states of the last tokens, float32 [tokens, hidden]."""
        logits = (self.rows @ hidden_rows[-1]) / np.float32(self.divisor)
        if self.cap is not None:
            logits = np.tanh(logits / np.float32(self.cap)) * np.float32(self.cap)
        found: Rows = logits[:1] - logits[1:] if self.difference else logits
        return found


def last_token_classifier(path: Path, tokenizer: Tokenizer | None) -> LastTokenClassifier | None:
    """Read the classifier of a decoder; None for one that scores nothing. Raises `CheckpointError`."""
    if path.is_file():  # GGUF files state none
        return None
    fields = read_fields(path)
    if _is_classifier(fields):
        return _sequence_classifier(path, fields, tokenizer)
    tokens = _logit_tokens(path, fields, tokenizer)
    if tokens is None:
        return None
    config, weights = ModelConfig.from_dir(path), open_weights(path)
    name = config.names.embedding if config.tie_embeddings else config.names.head
    head = weights.take(f"{name}.weight", (config.vocab_size, config.hidden_size))
    if any(not 0 <= token < config.vocab_size for token in tokens):
        problem = f"{list(tokens)} are not all tokens of a vocabulary of {config.vocab_size}"
        raise CheckpointError(path / "config.json", TOKENS, problem)
    return LastTokenClassifier(
        np.stack([np.asarray(head[token]).astype(np.float32) for token in tokens]),
        _activation(path, fields, 1),
        difference=len(tokens) == 2,
        divisor=config.logits_scaling,
        cap=config.logit_cap,
        template=_template(path, fields, tokenizer),
    )


def stated_labels(path: Path) -> int:
    """Return the number of scores that the files of a decoder state, without its weights; 0 for one that scores
    nothing. Raises `CheckpointError`."""
    if path.is_file():
        return 0
    fields = read_fields(path)
    if _is_classifier(fields):
        return _label_count(fields)
    file = path / "modules.json"
    by_logits = file.exists() and LOGIT_SCORE in dict(modules_of(file))
    return int(by_logits or fields.get(TOKENS) is not None)


def _is_classifier(fields: Fields) -> bool:
    names = fields.get("architectures")
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith(CLASSIFIER)


def _label_count(fields: Fields) -> int:
    labels: int = fields.integer("num_labels", 2, MAX_PARTS)
    stated = fields.get("id2label")
    return len(stated) if isinstance(stated, dict) else labels


def _sequence_classifier(path: Path, fields: Fields, tokenizer: Tokenizer | None) -> LastTokenClassifier:
    config, weights = ModelConfig.from_dir(path), open_weights(path)
    labels = _label_count(fields)
    rows = weights.take(f"{SCORE}weight", (labels, config.hidden_size)).astype(np.float32)
    template = _template(path, fields, tokenizer)
    return LastTokenClassifier(rows, _activation(path, fields, labels), template=template)


def _logit_tokens(path: Path, fields: Fields, tokenizer: Tokenizer | None) -> Sequence[int] | None:
    """Read the tokens whose logits are the score: the one for relevant texts first. None for a model that generates
    alone."""
    file = path / "modules.json"
    modules = dict(modules_of(file)) if file.exists() else {}
    if LOGIT_SCORE in modules:
        own = path / modules[LOGIT_SCORE] / "config.json"
        stated = read_json(own)
        tokens: list[int] = []
        for name in ("true_token_id", "false_token_id"):
            token = stated.get(name)
            if token is None and tokens:  # the logit of one token is the score
                continue
            if not isinstance(token, int) or isinstance(token, bool):
                raise CheckpointError(own, name, f"{token!r} is not the id of a token")
            tokens.append(token)
        return tokens
    words = fields.get(TOKENS)
    if words is None:
        return None
    if not isinstance(words, list) or not 1 <= len(words) <= 2 or not all(isinstance(word, str) for word in words):
        raise fields.error(TOKENS, f"{words!r} is not a list of one or two tokens")
    if len(words) == 2 and not fields.flag(ORIGINAL, False) and fields.get(METHOD) != TWO_WAY:
        raise fields.error(TOKENS, f"two tokens are supported with {ORIGINAL}, or with {METHOD} {TWO_WAY!r}")
    if tokenizer is None:
        raise fields.error(TOKENS, "cannot be read: the checkpoint has no tokenizer")
    encoded = [tokenizer.encode(word, special=False) for word in reversed(words)]
    for word, ids in zip(reversed(words), encoded, strict=True):
        if len(ids) != 1:
            raise fields.error(TOKENS, f"{word!r} is not one token")
    return [ids[0] for ids in encoded]


def _activation(path: Path, fields: Fields, labels: int) -> ScoreActivation:
    """Read the activation from sentence-transformers' file, or from config.json as for encoders."""
    file = path / "config_sentence_transformers.json"
    name = (find_document(path, file.name) or {}).get("activation_fn")
    return (
        score_activation(fields, labels) if name is None else named_activation(Fields(file, {}), "activation_fn", name)
    )


def _template(path: Path, fields: Fields, tokenizer: Tokenizer | None) -> PairTemplate | None:
    if fields.flag(ORIGINAL, False):
        return PairTemplate(QWEN3, QWEN3_INSTRUCTION)
    if tokenizer is None or not has_pair_roles(tokenizer.template_text):
        return None
    stated: dict[str, Any] = dict(find_document(path, "config_sentence_transformers.json") or {})
    prompts, name = stated.get("prompts") or {}, stated.get("default_prompt_name")
    return PairTemplate(None, prompts.get(name) or "" if isinstance(prompts, dict) else "")
