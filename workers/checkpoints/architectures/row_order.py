"""The order of the rows of a stored tensor: the runners read those of all heads one kind after the other."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PartOrder:
    """The rows of a tensor of the checkpoint: groups, in each a number of rows of every part.

    Read in order, they are the first part of all groups, then the second, and so on. Qwen3-Next stores a group for each
    key head (`in_proj_qkvz` and `in_proj_ba` of transformers).
    """

    groups: int
    parts: tuple[int, ...]
    """Rows of each part in a group."""

    def rows(self) -> NDArray[np.intp]:
        """Return the number of the stored row of each row."""
        stored = np.arange(self.groups * sum(self.parts)).reshape(self.groups, sum(self.parts))
        return np.concatenate([part.ravel() for part in np.split(stored, np.cumsum(self.parts)[:-1], axis=1)])


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The rows of a tensor of the checkpoint: groups of heads, in each its queries, then its keys, then its values.

    Read in order, they are the queries of all groups, then the keys, then the values. GPT-NeoX and Falcon store a group
    for each head or KV head (`query_key_value` of transformers); a matrix of queries alone is one group.
    """

    groups: int
    queries: int
    """Heads of each kind in a group."""
    keys: int
    values: int
    head_dim: int
    interleaved: int = 0
    """Lanes of queries and keys that RoPE rotates in pairs of neighbours (2i, 2i + 1): those become (i, i + half), as
    the runners rotate them. Scores do not change, as queries and keys have the same order."""

    def __post_init__(self) -> None:
        if self.interleaved % 2 or self.interleaved > self.head_dim:
            raise ValueError(f"interleaved: {self.interleaved} is not an even number of {self.head_dim} lanes")

    def rows(self) -> NDArray[np.intp]:
        """Return the number of the stored row of each row."""
        heads = self.queries + self.keys + self.values
        stored = np.arange(self.groups * heads * self.head_dim).reshape(self.groups, heads, self.head_dim)
        queries, keys, values = np.split(stored, (self.queries, self.queries + self.keys), axis=1)
        return np.concatenate([self._halves(queries), self._halves(keys), values.ravel()])

    def _halves(self, stored: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return heads with the first lanes of all pairs, then the second ones, then the lanes that pass."""
        turned, passed = stored[..., : self.interleaved], stored[..., self.interleaved :]
        return np.concatenate([turned[..., 0::2], turned[..., 1::2], passed], axis=-1).ravel()


@dataclass(frozen=True, slots=True)
class LatentOrder:
    """The rows of a tensor of the checkpoint: heads, in each the lanes without the position, then those with it.

    Read in order, they are the former of all heads, then the latter. DeepSeek's latent attention stores queries so, and
    with a single head the latent and the lanes of the key.
    """

    heads: int
    passed: int
    rotated: int
    interleaved: bool
    """RoPE rotates pairs of neighbours, as in `RowOrder`."""

    def rows(self) -> NDArray[np.intp]:
        """Return the number of the stored row of each row."""
        stored = np.arange(self.heads * (self.passed + self.rotated)).reshape(self.heads, -1)
        passed, rotated = stored[:, : self.passed], stored[:, self.passed :]
        if self.interleaved:
            rotated = np.concatenate([rotated[:, 0::2], rotated[:, 1::2]], axis=1)
        return np.concatenate([passed.ravel(), rotated.ravel()])


@dataclass(frozen=True, slots=True)
class SwappedHalves:
    """The rows of a tensor of the checkpoint whose second half is read first: of a GLU's matrices that with the
    gates."""

    half: int
    """Rows of a half."""

    def rows(self) -> NDArray[np.intp]:
        """Return the number of the stored row of each row."""
        return np.roll(np.arange(2 * self.half), self.half)


RowsOrder: TypeAlias = RowOrder | PartOrder | LatentOrder | SwappedHalves
"""The order of the rows of a tensor."""


@dataclass(frozen=True, slots=True)
class HeadPart:
    """The same part of the rows of each head of a tensor of the checkpoint, as one matrix for each head."""

    heads: int
    first: int
    """The first row of the part in a head."""
    rows: int
    transposed: bool
    """The matrices are transposed."""

    def shape(self, stored: tuple[int, ...]) -> tuple[int, int]:
        """Return the shape of all matrices, one below the other, of a tensor of the shape `stored`."""
        outputs, inputs = (stored[1], self.rows) if self.transposed else (self.rows, stored[1])
        return self.heads * outputs, inputs

    def take(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the matrices of a tensor, one below the other."""
        part = stored.reshape(self.heads, -1, stored.shape[1])[:, self.first : self.first + self.rows]
        part = part.swapaxes(1, 2) if self.transposed else part
        return np.ascontiguousarray(part).reshape(self.shape(stored.shape))
