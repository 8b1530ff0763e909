"""The format of cache rows: which runners compute the same bits and store them in the same way."""

import sys
from importlib import metadata
from pathlib import Path

from workers.checkpoints.lora.adapters_digest import adapters_digest
from workers.checkpoints.rows_format import rows_format_name
from workers.iree.build import graph_plan
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.build.recipe import Recipe
from workers.iree.build.source_digest import source_digest
from workers.iree.device.cpu import Cpu
from workers.iree.model.decoder import rope_frequencies
from workers.iree.model.tiled_ops import TiledOps

LAYOUT = 1
"""The version of the layout of `HostKv.read`."""


def rows_format(digest: str, recipe: Recipe, plan: GraphPlan) -> str:
    """Return `RunnerCapabilities.rows_format` of a runner whose cache is in the host's memory. `digest` is the
    checkpoint's, of `config_digest`.

    It covers the weights, the source of the graphs, the compiler, and the instructions of the CPU that determine the
    rounding. Numbers of threads and slots change no bits.
    """
    cache = plan.cache
    tile = (plan.ops.arithmetic.k, repr(plan.ops.padding)) if isinstance(plan.ops, TiledOps) else ()
    angles = b"".join(each.tobytes() for each in rope_frequencies(plan.config, recipe.context)).hex()
    parts = [
        LAYOUT,
        digest,
        plan.ops.dtype,
        recipe.quantize,
        recipe.kv_dtype,
        *((group.layers, group.heads, *dict.fromkeys(group.widths)) for group in cache.groups),
        tile,
        *((("ring", cache.ring),) if cache.ring else ()),
        angles,
        source_digest(graph_plan.__name__),
        metadata.version("iree-base-compiler"),
        metadata.version("jax"),
        sys.platform,
        Cpu.named(recipe.cpu).kind,
        *((f"adapters {adapters}",) if (adapters := adapters_digest(_paths(recipe))) else ()),
    ]
    return rows_format_name("iree", parts)


def _paths(recipe: Recipe) -> list[tuple[str, Path]]:
    return [(name, Path(path)) for name, path in recipe.lora_modules]
