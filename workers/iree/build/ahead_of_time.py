"""Everything that a start would compile or pack, before there is one."""

from collections.abc import Callable, Iterator
from pathlib import Path

from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.host.cores import cores_each
from workers.iree.build.compile_client import Builder, Built, build_all
from workers.iree.build.recipe import Recipe
from workers.iree.build.weight_archive import open_archive
from workers.iree.device.device import Device
from workers.iree.device.drivers import choose_device
from workers.precision import Dtype, Quantize

Progress = Callable[[str, int, int], None]


def compile_ahead(
    path: Path,
    config: ModelConfig,
    *,
    device: str,
    dtype: Dtype,
    quantize: Quantize = "none",
    slots: int,
    context: int,
    cache_dir: Path,
    threads: int,
    progress: Progress,
    workers: int = 1,
) -> Iterator[Built]:
    """Pack the weights, then every graph of the model, those in the cache first. Arguments as `IreeRunner.load` has.

    Nothing is loaded. Raises what a load raises.
    """
    opened = Device(*choose_device(device, threads, config, workers))
    try:
        recipe = Recipe.of(
            path, config, opened, dtype=dtype, quantize=quantize, slots=slots, context=context, cache_dir=cache_dir
        )
    finally:
        opened.close()
    builder = Builder(recipe)
    open_archive(open_weights(path), builder.plan.weights, builder.plan.ops, cache_dir, progress).close()
    groups = builder.plan.everything()
    progress("compile graphs", 0, len(groups))
    for done, built in enumerate(build_all(builder, groups, threads or cores_each(workers)), 1):
        progress("compile graphs", done, len(groups))
        yield built
