"""Sampling parameters that a checkpoint recommends, in generation_config.json."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.bounds import MAX_REPETITION, MAX_TEMPERATURE, MAX_TOP_K, MIN_REPETITION
from protocol.commands import SamplingDefault
from workers.checkpoints.documents import document_file, find_document
from workers.checkpoints.json_files import CheckpointError

NAME = "generation_config.json"
SamplingDefaults = Mapping[SamplingDefault, float]

_BOUNDS: dict[SamplingDefault, tuple[float, float]] = {
    "temperature": (0.0, MAX_TEMPERATURE),
    "top_p": (math.ulp(0.0), 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (MIN_REPETITION, MAX_REPETITION),
}


def read_sampling_defaults(path: Path) -> SamplingDefaults:
    """Read what a client's request leaves open. `do_sample: false` recommends the temperature 0.

    Raises `CheckpointError` for a value that no request could have.
    """
    fields = find_document(path, NAME)
    if fields is None:
        return {}
    file = document_file(path, NAME)
    found: dict[SamplingDefault, float] = {}
    for name, (low, high) in _BOUNDS.items():
        if (value := fields.get(name)) is not None:
            found[name] = _number(file, name, value, low, high)
    if (value := fields.get("top_k")) is not None:
        found["top_k"] = max(0, _top_k(file, value))
    if fields.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def _number(file: Path, name: str, value: Any, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise _invalid(file, name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _top_k(file: Path, value: Any) -> int:
    """-1 keeps all tokens, as 0 does."""
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= MAX_TOP_K:
        raise _invalid(file, "top_k", value, f"an integer from -1 to {MAX_TOP_K}")
    return value


def _invalid(file: Path, name: str, value: Any, expected: str) -> CheckpointError:
    advice = "correct it, or ignore the recommended sampling with --generation-config none"
    return CheckpointError(file, name, f"{value!r} is not {expected}: {advice}")
