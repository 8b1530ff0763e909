"""Names the prefixes of a sequence by a digest of tenant and tokens, at any length. Pure."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

DIGEST_BYTES = 16


class SequenceDigests:
    """Digests of the prefixes of one sequence, computed once each.

    Equal digests mean the same tenant and tokens, and, with `chunk_ends`, the same prefill chunks. Tokens may be
    appended to the sequence later; its `chunk_ends` are fixed.
    """

    def __init__(self, tenant: str, tokens: Sequence[int], chunk_ends: Sequence[int] | None) -> None:
        """`chunk_ends` None: the chunks are of no consequence."""
        self._tokens = tokens
        self._chunk_ends = chunk_ends
        self._hashes = {0: hashlib.blake2b(f"{len(tenant)}\0{tenant}".encode(), digest_size=DIGEST_BYTES)}
        self._digests: dict[int, bytes] = {}
        self._matching: tuple[tuple[int, int], list[int]] = ((-1, -1), [])
        """The last answer of `matching`, and for what it holds."""

    @property
    def most(self) -> int:
        """The length of the longest prefix: that of the sequence."""
        return len(self._tokens)

    def matching(self, version: int, find: Callable[[], list[int]]) -> list[int]:
        """Return what `find` returns: the lengths of prefixes that some store holds. It is called again only for
        another version of that, or if the sequence has grown."""
        key = (version, len(self._tokens))
        if self._matching[0] != key:
            self._matching = (key, find())
        return self._matching[1]

    def compute(self, lengths: Iterable[int]) -> None:
        """Compute the digests of these lengths, in rising order, in one pass. There are tokens for all of them."""
        at = 0
        for length in lengths:
            if length not in self._hashes:
                running = self._hashes[at].copy()
                running.update(np.asarray(self._tokens[at:length], np.int64).tobytes())
                self._hashes[length] = running
            at = length

    def of(self, length: int) -> bytes | None:
        """Return the digest of the first `length` tokens; None for one that is no chunk end, if chunks matter."""
        if self._chunk_ends is not None and length not in self._chunk_ends:
            return None
        if (known := self._digests.get(length)) is None:
            self.compute([max(at for at in self._hashes if at <= length), length])
            hashed = self._hashes[length].copy()
            if self._chunk_ends is not None:
                ends = [end for end in self._chunk_ends if end <= length]
                hashed.update(np.asarray([-1, *ends], np.int64).tobytes())
            known = self._digests[length] = hashed.digest()
        return known
