"""The built-in model: its training and the shipped checkpoint.

Model families are elsewhere: to add one, see `workers/checkpoints/architectures/` and docs/adding-a-model.md.
"""

from __future__ import annotations

from pathlib import Path


def builtin_path() -> Path:
    """Return the directory of the shipped model `baton-tiny`, in Hugging Face layout."""
    return Path(__file__).parent / "builtin"


def draft_path() -> Path:
    """The directory of its smaller sibling `baton-tiny-draft`, which has the same tokenizer. It is not installed."""
    return Path(__file__).parent / "builtin_draft"
