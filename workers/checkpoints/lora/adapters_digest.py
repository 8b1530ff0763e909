"""The digest of the adapters of a worker: equal digests mean equal names and equal files."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from workers.checkpoints.checkpoint import config_digest


def adapters_digest(modules: Sequence[tuple[str, Path]]) -> str:
    """Return the digest of adapters by name and directory; empty for none. Raises `OSError`."""
    if not modules:
        return ""
    parts = sorted((name, config_digest(path)) for name, path in modules)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
