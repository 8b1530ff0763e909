"""The pooling of a checkpoint that generates: what sentence-transformers' files say of it, or the last token."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.bounds import MAX_NAME, MAX_POOLING_PROMPTS
from workers.checkpoints.json_files import MAX_CONFIG_BYTES, CheckpointError, read_json, read_text
from workers.pooling.pooling import Pooling, PoolingKind
from workers.pooling.served_pooling import NO_POOLING, ServedPooling

POOLING_FILE = "1_Pooling/config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
_MODES: Mapping[str, PoolingKind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
_NAMES: Mapping[str, PoolingKind] = {"cls": "cls", "lasttoken": "last", "mean": "mean"}
"""Those of `pooling_mode`, in newer files."""


def default_pooling(path: Path, width: int, *, generates: bool) -> ServedPooling:
    """Return the pooling of the checkpoint in `path`, whose hidden states have `width` numbers.

    Raises `CheckpointError` for a pooling that is not supported.
    """
    prompts, chosen = _prompts(path)
    if not (path / POOLING_FILE).is_file():
        return ServedPooling(width, Pooling("last"), prompts=prompts, default_prompt=chosen, generates=generates)
    if _has_module(path, "Dense"):
        return NO_POOLING
    pooling = Pooling(_kind(path / POOLING_FILE), normalize=_has_module(path, "Normalize"))
    return ServedPooling(width, pooling, prompts=prompts, default_prompt=chosen, generates=generates)


def _kind(file: Path) -> PoolingKind:
    fields = read_json(file)
    if "pooling_mode" in fields:
        named = _NAMES.get(str(fields["pooling_mode"]))
        found = [] if named is None else [named]
    else:
        found = [kind for name, kind in _MODES.items() if fields.get(name)]
    others = [name for name, on in fields.items() if name.startswith("pooling_mode_") and on and name not in _MODES]
    if len(found) != 1 or others:
        raise CheckpointError(file, "pooling_mode", f"must be one of {', '.join(_MODES)}")
    return found[0]


def _has_module(path: Path, name: str) -> bool:
    """Return whether the checkpoint has a module after the pooling; without a list of them, that it has `Normalize`."""
    file = path / "modules.json"
    if not file.is_file():
        return name == "Normalize"
    modules = _read_list(file)
    return any(str(each.get("type", "")).endswith(f".{name}") for each in modules if isinstance(each, dict))


def _read_list(file: Path) -> list[Any]:
    """Return the list in a JSON file. Raises `CheckpointError`."""
    try:
        value = json.loads(read_text(file, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, "", f"is not JSON: {error}") from error
    if not isinstance(value, list):
        raise CheckpointError(file, "", "must be a list")
    return value


def _prompts(path: Path) -> tuple[Mapping[str, str], str]:
    """Return the prompts of the checkpoint by their names, and the name of the default one."""
    file = path / PROMPTS_FILE
    fields = read_json(file) if file.is_file() else {}
    prompts = fields.get("prompts") or {}
    right = isinstance(prompts, dict) and all(
        isinstance(name, str) and isinstance(text, str) and len(name) <= MAX_NAME for name, text in prompts.items()
    )
    if not right or len(prompts) > MAX_POOLING_PROMPTS:
        raise CheckpointError(file, "prompts", f"must be at most {MAX_POOLING_PROMPTS} texts by name")
    chosen = fields.get("default_prompt_name") or ""
    if chosen and chosen not in prompts:
        raise CheckpointError(file, "default_prompt_name", f"is none of the prompts: {chosen!r}")
    return prompts, chosen
