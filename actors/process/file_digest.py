"""The digest of some files of a directory: equal digests mean equal contents, on any machine."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

_PART_BYTES = 1 << 20


class FilesTooLarge(ValueError):
    """Raised for files of more bytes than their reader takes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"its files have more than {most} bytes")


def file_digest(
    directory: Path,
    names: Sequence[str],
    size: int,
    most: int,
    opened: Callable[[Path], BinaryIO],
    copy_to: Path | None = None,
) -> str:
    """Return the digest, of `size` bytes in hexadecimal digits, of those of these files that are in a directory. They
    may have `most` bytes together, are opened by `opened`, read once, and copied to the existing directory `copy_to`,
    if there is one.

    Raises `FilesTooLarge`, `OSError`, and what `opened` raises.
    """
    digest, total = hashlib.blake2b(digest_size=size), 0
    for name in names:
        if not os.path.lexists(directory / name):
            continue
        inner = hashlib.blake2b(digest_size=size)
        with opened(directory / name) as source, _target(copy_to, name) as target:
            if total + os.fstat(source.fileno()).st_size > most:  # do not copy what is refused
                raise FilesTooLarge(most)
            while part := source.read(_PART_BYTES):
                total += len(part)
                if total > most:
                    raise FilesTooLarge(most)
                inner.update(part)
                target.write(part)
        digest.update(name.encode() + b"\0" + inner.digest())
    return digest.hexdigest()


def _target(copy_to: Path | None, name: str) -> BinaryIO:
    return open(os.devnull if copy_to is None else copy_to / name, "wb")
