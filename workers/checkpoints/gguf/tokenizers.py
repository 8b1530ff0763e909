"""Tokenizers in the metadata of GGUF files, in the notation of tokenizer.json.

`gpt2` is byte-level BPE: what `tokenizer.ggml.pre` names splits the text. `llama` is SentencePiece's BPE, whose merges
follow from the scores of the tokens as in transformers' `convert_slow_tokenizer.generate_merges`.
"""

import math
from typing import Any

from workers.checkpoints.gguf.pre_tokenizers import PRE_TOKENIZERS
from workers.checkpoints.gguf.vocabulary import BYTE, NORMAL, SPACE, USER_DEFINED, GgufVocabulary

MAX_TOKEN = 512
"""Characters of a token of SentencePiece, above any real one: each is split at every place."""
MAX_MERGES = 4 << 20
"""Above any real number of merges: 262,144 tokens of Gemma have 515,000."""


def tokenizer_json(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Return the tokenizer of a file. Raises `CheckpointError` for a kind or a pre-tokenizer that is not supported."""
    kind = vocabulary.get("model")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise vocabulary.error("model", f"{kind!r} is not supported, only 'gpt2', 'llama' and 'gemma4'")
    own = _byte_level(vocabulary) if kind == "gpt2" else _sentencepiece(vocabulary)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": vocabulary.added(), **own}


def _byte_level(vocabulary: GgufVocabulary) -> dict[str, Any]:
    name = vocabulary.get("pre")
    pre = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if pre is None:
        raise vocabulary.error("pre", f"{name!r} is not supported, only {', '.join(PRE_TOKENIZERS)}")
    used = vocabulary.used()
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre.steps()},
        "post_processor": _around(vocabulary, bos=pre.bos),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": _bpe(used, _listed_merges(vocabulary, used), ignore_merges=pre.whole_words),
    }


def _listed_merges(vocabulary: GgufVocabulary, used: dict[str, int]) -> list[list[str]]:
    """Read the merges of a file. Raises `CheckpointError` for one that is not of tokens."""
    merges = vocabulary.get("merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise vocabulary.error("merges", "is not a list of strings")
    pairs = []
    for number, merge in enumerate(merges):
        left, space, right = merge[1:].partition(" ")  # a space at the start is part of the token
        left = merge[:1] + left
        if not space or any(part not in used for part in (left, right, left + right)):
            raise vocabulary.error("merges", f"merge {number} is not of two tokens to a third: {merge[:64]!r}")
        pairs.append([left, right])
    return pairs


def _sentencepiece(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """SentencePiece's BPE, of pieces with ▁ for spaces. Gemma 4's files list its merges."""
    used, listed = vocabulary.used(), vocabulary.get("model") == "gemma4"
    prefix = vocabulary.flag("add_space_prefix", True)
    unknown = vocabulary.role("unknown")
    replace: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replace]},
        "pre_tokenizer": None,
        "post_processor": _around(vocabulary, bos=True),
        "decoder": {"type": "Sequence", "decoders": [*back, *strip]},
        "model": _bpe(
            used,
            _listed_merges(vocabulary, used) if listed else _merges(vocabulary, used),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=BYTE in vocabulary.types,
        ),
    }


def _bpe(vocabulary: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    base = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return base | options | {"vocab": vocabulary, "merges": merges}


def _merges(vocabulary: GgufVocabulary, used: dict[str, int]) -> list[list[str]]:
    """Return all pairs of tokens that make a token, that with the best score first, as SentencePiece merges them.

    The tokens of Gemma are in the order of their merges, which their scores do not follow.
    """
    scores = vocabulary.get("scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise vocabulary.error("scores", f"is not a list of the scores of {len(vocabulary.tokens)} tokens")
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise vocabulary.error("scores", "are not all finite numbers")
    if str(vocabulary.model.metadata.get("general.architecture")).startswith("gemma"):
        scores = range(0, -len(scores), -1)
    found: list[tuple[float, int, int, str, str]] = []
    for token, ident in used.items():
        if vocabulary.types[ident] not in (NORMAL, USER_DEFINED):
            continue
        if len(token) > MAX_TOKEN:
            raise vocabulary.error("tokens", f"the token {ident} has {len(token)} characters, more than {MAX_TOKEN}")
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in used and right in used:
                found.append((float(scores[ident]), at, len(right), left, right))
        if len(found) > MAX_MERGES:
            raise vocabulary.error("tokens", f"they have more than {MAX_MERGES} merges")
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [[left, right] for *_, left, right in found]


def _around(vocabulary: GgufVocabulary, *, bos: bool) -> dict[str, Any] | None:
    """The tokens before and after a plain prompt; None for none."""
    before, after = vocabulary.around(bos=bos)
    if before is None and after is None:
        return None
    special = {ident: vocabulary.tokens[ident] for ident in (before, after) if ident is not None}
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before is not None:
        single.insert(0, {"SpecialToken": {"id": special[before], "type_id": 0}})
    if after is not None:
        single.append({"SpecialToken": {"id": special[after], "type_id": 0}})
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [ident], "tokens": [token]} for ident, token in special.items()},
    }
