"""The digest of an adapter's files: equal digests mean equal weights, on any machine."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from protocol.bounds import MAX_ADAPTER_BYTES

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapters.safetensors")
"""The description of an adapter, and its weights in the layout of PEFT or of mlx-lm."""
DIGEST_BYTES = 16
_PART_BYTES = 1 << 20


class AdapterTooLarge(ValueError):
    """Raised for files of an adapter of more than `MAX_ADAPTER_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"its files have more than {MAX_ADAPTER_BYTES} bytes")


def adapter_digest(directory: Path, opened: Callable[[Path], BinaryIO], copy_to: Path | None = None) -> str:
    """Return the digest of the files in a directory that belong to an adapter, 32 hexadecimal digits. They are opened
    by `opened`, read once, and copied to the existing directory `copy_to`, if there is one.

    Raises `AdapterTooLarge`, `OSError`, and what `opened` raises.
    """
    digest, total = hashlib.blake2b(digest_size=DIGEST_BYTES), 0
    for name in ADAPTER_FILES:
        if not os.path.lexists(directory / name):
            continue
        inner = hashlib.blake2b(digest_size=DIGEST_BYTES)
        with opened(directory / name) as source, _target(copy_to, name) as target:
            while part := source.read(_PART_BYTES):
                total += len(part)
                if total > MAX_ADAPTER_BYTES:
                    raise AdapterTooLarge
                inner.update(part)
                target.write(part)
        digest.update(name.encode() + b"\0" + inner.digest())
    return digest.hexdigest()


def _target(copy_to: Path | None, name: str) -> BinaryIO:
    return open(os.devnull if copy_to is None else copy_to / name, "wb")
