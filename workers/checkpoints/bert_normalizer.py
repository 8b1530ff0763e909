"""Normalizers that other files than tokenizer.json state: that of BERT's tokenizers, which transformers makes from
tokenizer_config.json, whatever tokenizer.json has; and lower case, by sentence-transformers' sentence_bert_config.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.checkpoints.json_files import CheckpointError

CLASSES = frozenset(
    f"{name}Tokenizer{kind}" for name in ("Bert", "DistilBert", "Electra", "MPNet") for kind in ("", "Fast")
)
"""Classes of transformers whose normalizer is this one."""
FAMILIES = frozenset({"bert", "distilbert", "electra", "mpnet"})
"""Models (`model_type`) that have such a class where tokenizer_config.json names none."""


def with_bert_normalizer(
    description: Mapping[str, Any], config_file: Path, config: Mapping[str, Any], family: Any
) -> Mapping[str, Any]:
    """Return tokenizer.json with the normalizer that transformers uses: `do_lower_case` (true by default),
    `tokenize_chinese_chars` (true) and `strip_accents` (as `do_lower_case`) of tokenizer_config.json, for a tokenizer
    of the classes that read these. Every other description is returned as it is. `family` is the model's `model_type`.
    Raises `CheckpointError` for a value that is no boolean."""
    normalizer, name = description.get("normalizer"), config.get("tokenizer_class")
    of_bert = name in CLASSES if isinstance(name, str) else family in FAMILIES
    if not of_bert or not isinstance(normalizer, Mapping) or normalizer.get("type") != "BertNormalizer":
        return description
    changed = {
        "lowercase": _flag(config_file, config, "do_lower_case", default=True),
        "handle_chinese_chars": _flag(config_file, config, "tokenize_chinese_chars", default=True),
        "strip_accents": _flag(config_file, config, "strip_accents", default=None),
    }
    return {**description, "normalizer": {**normalizer, **changed}}


def with_lower_case(description: Mapping[str, Any], file: Path, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return tokenizer.json with a normalizer that makes letters small before any other, if `do_lower_case` of
    sentence_bert_config.json, whose `fields` are given, is true. Raises `CheckpointError` for a value that is no
    boolean."""
    if not _flag(file, fields, "do_lower_case", default=False):
        return description
    normalizer = description.get("normalizer")
    first = [] if normalizer is None else [normalizer]
    return {**description, "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *first]}}


def _flag(file: Path, config: Mapping[str, Any], name: str, *, default: bool | None) -> bool | None:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(file, name, f"{value!r} is not true or false")
    return value
