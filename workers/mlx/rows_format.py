"""The format of cache rows: which runners compute the same bits and store them in the same way."""

import platform
import sys
from importlib import metadata
from pathlib import Path

from workers.checkpoints.checkpoint import config_digest
from workers.checkpoints.rows_format import rows_format_name
from workers.precision import KvDtype, Quantize

LAYOUT = 1
"""The version of the layout of `KvCache.read`."""


def rows_format(
    path: Path,
    dtype: str,
    quantize: Quantize,
    kv_dtype: KvDtype,
    context: int,
    device: str,
    *,
    adapter: Path | None = None,
    adapters: str = "",
    mtp: bool = False,
    ring: int = 0,
) -> str:
    """Return `RunnerCapabilities.rows_format`. The arithmetic of a GPU is not known, so each machine's is its own kind.

    The angles of RoPE may depend on the context. `adapters` is the digest of those that requests choose, `ring`
    the rows that layers with a window keep.
    """
    computes = device if device == "cpu" else f"{device} {platform.node()}"
    versions = [metadata.version("mlx"), metadata.version("mlx-lm"), sys.platform, platform.machine()]
    parts = [LAYOUT, config_digest(path), dtype, quantize, kv_dtype, context, computes, *versions]
    if adapter is not None:
        parts.append(config_digest(adapter))
    if adapters:
        parts.append(f"adapters {adapters}")
    if mtp:
        parts.append("mtp")
    if ring:
        parts.append(f"ring {ring}")
    return rows_format_name("mlx", parts)
