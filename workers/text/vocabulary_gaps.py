"""Vocabularies with ids that no token has, in the notation of tokenizer.json.

The `tokenizers` library gives a token that the model's vocabulary lacks the number of its tokens as its id, whatever
tokenizer.json states. Where ids are left out, that is the id of another token.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.checkpoints.json_files import CheckpointError

LAST = "\ufdd3\ufdd4\ufdd3\ufdd4"
"""The token behind all others, of noncharacters: the library counts on from its id. It must not be found in text."""
MAX_ID = 1 << 20
"""The largest id: four times as many tokens as the largest vocabularies have."""


def with_stated_ids(file: Path, description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a description by which every token gets the id that tokenizer.json states, and new ones a free id.

    It is the same one if no id is left out, or if ids are places in a list. Raises `CheckpointError` for an id above
    `MAX_ID`.
    """
    model, added = description.get("model"), description.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(vocabulary, Mapping):
        return description
    added = added if isinstance(added, list) else []
    named = {each.get("content"): each.get("id") for each in added if isinstance(each, Mapping)}
    tokens = {**named, **vocabulary}
    ids = {ident for ident in tokens.values() if isinstance(ident, int)}
    largest = max(ids, default=0)
    if largest > MAX_ID:
        raise CheckpointError(file, "model.vocab", f"a token has the id {largest}, more than {MAX_ID}")
    if len(ids) == largest + 1:
        return description
    tokens[LAST] = largest + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    last = {"id": largest + 1, "content": LAST, "special": True, **flags}
    return {**description, "model": {**model, "vocab": tokens}, "added_tokens": [*added, last]}
