"""Ahead-of-time compilation: everything that a worker would pack and compile when it starts."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from workers.checkpoints.checkpoint import ModelConfig, config_digest, open_weights
from workers.checkpoints.encoders.config import EncoderConfig
from workers.host.cpu_plan import CpuPlan
from workers.iree.build.compile_client import Builder, Building, Built, EncoderBuilder
from workers.iree.build.encoder.recipe import EncoderRecipe
from workers.iree.build.recipe import Recipe
from workers.iree.build.weight_archive import ArchivePlace, open_archive
from workers.iree.device.device import Device
from workers.iree.device.drivers import choose_device
from workers.load_options import LoadOptions, Progress


def compile_ahead(
    path: Path,
    config: ModelConfig | EncoderConfig,
    options: LoadOptions,
    progress: Progress,
    *,
    rare: bool = True,
) -> Iterator[Built]:
    """Pack the weights and compile every graph of the model, those in the cache first.

    Without `rare`, only the graphs that a worker compiles before one is missed.

    Nothing is loaded. Raises what `IreeRunner.load` raises.
    """
    plan = CpuPlan.of_host(options.workers, options.threads, options.threads_bind)
    planned = plan.at(options.place).threads
    uri, threads = choose_device(options.device, options.threads, config, planned)
    device = Device(uri, threads, options.cpu, compile_only=True)
    try:
        if isinstance(config, EncoderConfig):
            builder: Builder | EncoderBuilder = EncoderBuilder(EncoderRecipe.of(path, config, device, options))
        else:
            builder = Builder(Recipe.of(path, config, device, options))
    finally:
        device.close()
    digest = config_digest(path)
    groups = builder.plan.everything() if rare else builder.plan.required() + builder.plan.optional()
    with Building(builder, groups, planned) as building:
        for place in dict.fromkeys(ArchivePlace(options.cache_dir, worker.copy) for worker in plan.workers):
            weights = open_weights(path, options.quantize)
            open_archive(weights, digest, builder.plan.weights, builder.plan.ops, place, progress).close()
        count = len(building.groups)
        progress("compile graphs", 0, count)
        for done, built in enumerate(chain(building.found, building.compiled()), 1):
            progress("compile graphs", done, count)
            yield built
