"""The filters of sampling as anyone would write them: in float64, with sorts, one row at a time."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def kept(
    row: Floats,
    *,
    temperature: float,
    top_k: int = 0,
    typical_p: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    xtc_threshold: float | None = None,
) -> set[int]:
    """Return the ids that the filters keep, in this order. XTC excludes tokens unless its threshold is None."""
    p = np.exp((row.astype(np.float64) - row.max()) / temperature)
    keep = row >= np.sort(row)[::-1][min(top_k, len(row)) - 1] if top_k else np.ones(len(row), bool)
    keep &= p > 2.0**-25  # less likely tokens are never sampled
    keep = _typical(p, keep, typical_p)
    keep &= p >= _last(p, keep, -p, top_p)
    keep &= p >= min_p * p[keep].max()
    if xtc_threshold is not None:
        top = keep & (p >= xtc_threshold * p[keep].sum())
        if top.any():
            keep &= p <= p[top].min()
    return set(np.flatnonzero(keep).tolist())


def _typical(p: NDArray[np.float64], keep: NDArray[np.bool_], typical_p: float) -> NDArray[np.bool_]:
    if typical_p >= 1.0:
        return keep
    share = p / p[keep].sum()
    entropy = -(share[keep] * np.log(share[keep])).sum()
    shift = np.abs(-np.log(np.maximum(share, 1e-300)) - entropy)
    order = np.argsort(shift[keep], kind="stable")
    mass = np.cumsum(share[keep][order])
    limit = shift[keep][order][min(int((mass < typical_p).sum()), len(order) - 1)]
    close: NDArray[np.bool_] = keep & (shift <= limit)
    return close


def _last(p: NDArray[np.float64], keep: NDArray[np.bool_], by: NDArray[np.float64], top_p: float) -> float:
    """Return the probability of the last token of the most likely ones with the share top_p."""
    order = np.argsort(by[keep], kind="stable")
    mass = np.cumsum(p[keep][order]) / p[keep].sum()
    return float(p[keep][order][min(int((mass < top_p).sum()), len(order) - 1)])
