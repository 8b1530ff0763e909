"""Names of blocks: which rows a block has follows from its key alone. Pure.

The key of a block is a digest of the block before it and of its own tokens, as vLLM's block hashes are; that of the
first one begins with the format of the rows and the tenant. So equal keys mean equal rows, and no tenant finds
another's.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KEY_BYTES = 16
BLOCK_BYTES = 1 << 20
"""Bytes that a block may have, unless it has the fewest rows."""
FEWEST_ROWS, MOST_ROWS = 16, 64
"""A prefix is found in whole blocks: with more rows, more of it is computed again; with fewer, there are more files."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Names the rows of a block, and the block before it."""

    key: bytes
    parent: bytes
    """The key of the block before; `root` for the first one."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.key.hex()}-{self.parent.hex()}"

    @property
    def state(self) -> "RowBlock":
        """Names the recurrent state after the rows of this block, which follows it as a further block would."""
        return RowBlock(hashlib.blake2b(self.key, digest_size=KEY_BYTES, person=b"state").digest(), self.key)


def rows_of_block(row_bytes: int) -> int:
    """Return the rows of a block: the same for all workers whose rows have so many bytes."""
    rows = MOST_ROWS
    while rows > FEWEST_ROWS and rows * row_bytes > BLOCK_BYTES:
        rows //= 2
    return rows


def root(rows_format: str, tenant: str, rows: int) -> bytes:
    """Return what the first block of a tenant follows, for blocks of so many rows."""
    return hashlib.blake2b(f"{rows_format}\0{rows}\0{tenant}".encode(), digest_size=KEY_BYTES).digest()


def extend(blocks: list[RowBlock], first: bytes, tokens: Sequence[int], rows: int, count: int) -> None:
    """Extend the blocks of a sequence to `count`. `first` is the root; there are tokens for all of them."""
    while len(blocks) < count:
        at = len(blocks) * rows
        parent = blocks[-1].key if blocks else first
        # Numbers of rows of embeddings are negative. A block with them has more bytes than one of tokens alone.
        part = np.asarray(tokens[at : at + rows], np.int64)
        text = part.astype(np.uint32 if part.min() >= 0 else np.int64).tobytes()
        blocks.append(RowBlock(hashlib.blake2b(parent + text, digest_size=KEY_BYTES).digest(), parent))
