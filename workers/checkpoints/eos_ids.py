"""End-of-sequence ids of a checkpoint, which its configs name, with or without a tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from workers.checkpoints.documents import document_file, find_document
from workers.checkpoints.json_files import CheckpointError


def read_eos_ids(path: Path) -> frozenset[int]:
    """Collect the ids of both configs: chat models list more of them in one file than in another.

    Raises `CheckpointError` for what is neither an id nor a list of ids.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        fields = find_document(path, name)
        if fields is None:
            continue
        value, text = fields.get("eos_token_id"), fields.get("text_config")
        if value is None and isinstance(text, Mapping):  # a multimodal model
            value = text.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in ids):
            raise CheckpointError(
                document_file(path, name), "eos_token_id", f"{value!r} is neither a token id nor a list of token ids"
            )
        found.update(ids)
    return frozenset(found)
