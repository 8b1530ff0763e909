"""`bench/gpu_check.py --compile-only`: compiles graphs for GPUs that this machine does not have."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.gpu.stages import StageSpec, checkpoint
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig
from workers.host.topology import usable_cores
from workers.iree.build.compile_client import Builder, build_all
from workers.iree.build.recipe import Recipe
from workers.iree.device.gpu import GPU_TARGETS, VULKAN_TARGETS, cuda_target, gpu_flags
from workers.precision import Dtype

TARGETS: Mapping[str, tuple[tuple[str, Dtype], ...]] = {
    "cuda": (("sm_80", "bfloat16"),),
    "hip": (("gfx942", "bfloat16"),),
    "vulkan": (("", "float32"), *((target, "float16") for target in VULKAN_TARGETS.values())),
}
"""Targets without a named architecture: an A100, an MI300, any GPU with Vulkan, and those of vendors in float16."""


def target_of(text: str) -> tuple[str, str]:
    """Return the driver and the architecture of a target such as `cuda` or `cuda:sm_90`.

    An NVIDIA GPU that the compiler does not know gets the architecture that the runner takes for it. Raises
    `ValueError`.
    """
    driver, _, architecture = text.partition(":")
    if driver not in GPU_TARGETS:
        raise ValueError(f"{text!r} is not one of {', '.join(GPU_TARGETS)}, with or without :ARCHITECTURE")
    if driver == "cuda" and architecture:
        number = architecture.removeprefix("sm_")
        if not number.isdecimal() or not (known := cuda_target(int(number))):
            raise ValueError(f"{text!r} names no GPU that graphs are compiled for, such as cuda:sm_90")
        architecture = known
    return driver, architecture


def check_compiles(targets: Sequence[tuple[str, str]], specs: Mapping[str, Sequence[StageSpec]]) -> bool:
    """Compile for each target, a driver and an architecture: without the latter every graph of a small model, with it
    those of the driver's `specs`, into their folder. Prints a line for each model; false if any failed."""
    good = True
    for driver, architecture in targets:
        with tempfile.TemporaryDirectory() as name:
            plans = _stages(driver, architecture, specs[driver]) if architecture else _samples(driver, Path(name))
            for what, compiled in plans:
                label = " ".join(part for part in ("compile", driver, *what) if part)
                try:
                    print(f"PASS {label}: {compiled()}", flush=True)
                except Exception as error:  # noqa: BLE001 - the message is the result
                    print(f"FAIL {label}: {type(error).__name__}: {str(error)[:1000]}", flush=True)
                    good = False
    return good


Plan = tuple[tuple[str, ...], Callable[[], str]]
"""The target and the model in words, and a call that compiles and returns how much it was."""


def _samples(driver: str, folder: Path) -> Iterator[Plan]:
    for architecture, dtype in TARGETS[driver]:
        path = make_checkpoint(folder / f"{driver}-{architecture}", layers=1)
        recipe = Recipe(str(path), dtype, False, 2, 64, gpu_flags(driver, architecture), driver, str(folder / "cache"))
        yield (architecture, dtype), partial(_compile, recipe, required=False)


def _stages(driver: str, architecture: str, specs: Sequence[StageSpec]) -> Iterator[Plan]:
    """The graphs that the stages of a run will look for: a step needs the required ones, a gate takes all."""
    for spec in specs:
        if spec.stage in ("gate", "engine"):
            path, flags, sizes = checkpoint(spec), gpu_flags(driver, architecture), spec.sizes
            context = ModelConfig.from_dir(path).choose_context(sizes.context)
            recipe = Recipe(str(path), spec.dtype, False, sizes.slots, context, flags, sys.platform, spec.folder)
            yield (architecture, spec.model, spec.dtype), partial(_compile, recipe, required=spec.stage == "engine")


def _compile(recipe: Recipe, *, required: bool) -> str:
    builder = Builder(recipe)
    groups = builder.plan.required() if required else builder.plan.everything()
    built = list(build_all(builder, groups, usable_cores()))
    return f"{sum(map(len, groups))} graphs in {len(built)} modules"
