"""Names of formats of cache rows, which all backends build in the same way."""

import hashlib
import json
from collections.abc import Sequence


def rows_format_name(backend: str, parts: Sequence[object]) -> str:
    """Return `RunnerCapabilities.rows_format` for all that determines the bits of rows and their layout, as values of
    JSON."""
    return f"{backend}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"
