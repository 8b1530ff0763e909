"""Digest of cache rows on their way from one worker to another."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from protocol.bounds import ROWS_DIGEST_BYTES


def state_format(rows_format: str, rows: int) -> str:
    """Return what stands for the format of rows in the digest of a part of the recurrent state after so many rows."""
    return f"{rows_format}\0state after {rows}"


def rows_digest(rows_format: str, transfer: int, start: int, tokens: Sequence[int], rows: bytes | memoryview) -> bytes:
    """Return the digest (BLAKE2b, RFC 7693) of rows from `start` on, with their format and tokens.

    Each worker computes it with its own format, so rows of another one do not match, nor do those of another transfer
    or of another place in it. As rows are taken one after the other from 0 on, the digests of all parts together stand
    for the whole. Tokens have 32 bits each; 64 bits where numbers of rows of images are among them.
    """
    digest = blake2b(digest_size=ROWS_DIGEST_BYTES)
    name = rows_format.encode()
    for number in (len(name), transfer, start, len(tokens)):
        digest.update(number.to_bytes(8, "little"))
    digest.update(name)
    digest.update(array("q" if min(tokens, default=0) < 0 else "i", tokens).tobytes())
    digest.update(rows)
    return digest.digest()
