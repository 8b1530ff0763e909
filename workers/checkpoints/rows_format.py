"""Names of formats of cache rows, which all backends build in the same way."""

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

_SHARED = ("checkpoints", "vision")
"""The packages, beside a backend's own, whose code determines rows: how weights are read, and what of images is."""


def rows_format_name(backend: str, parts: Sequence[object]) -> str:
    """Return `RunnerCapabilities.rows_format` for all that determines the bits of rows and their layout, as values of
    JSON. The source of the backend is a part as well, so that no row outlives the version that has computed it."""
    source = sources_digest(Path(__file__).parents[1], (backend, *_SHARED))
    return f"{backend}-{hashlib.sha256(json.dumps([source, *parts]).encode()).hexdigest()[:32]}"


@functools.cache
def sources_digest(root: Path, packages: tuple[str, ...]) -> str:
    """Return the hexadecimal SHA-256 over the names and texts of all modules of these packages below `root`."""
    digest = hashlib.sha256()
    for file in sorted(file for package in packages for file in (root / package).rglob("*.py")):
        text = file.read_bytes()
        digest.update(f"{file.relative_to(root)}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()
