"""The graphs of vision towers against numpy, with random parameters."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.vision_tower import NumpyTower
from tests.workers.iree.vision.prompted import finish
from tests.workers.iree.vision.random_towers import random_image, random_parameters
from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.vision.encoder import IreeVision
from workers.iree.vision.graphs import TowerGraphs
from workers.vision.config import Merger, VisionConfig

EACH = Merger("concat", "layer", True, 1e-6, 24, "gelu", True)
QWEN3 = VisionConfig(
    family="qwen3_vl",
    patch_values=20,
    layers=2,
    hidden=32,
    heads=2,
    head_dim=16,
    mlp=40,
    norm="layer",
    eps=1e-6,
    activation="gelu_tanh",
    gated=False,
    biases=True,
    scale=0.25,
    group=4,
    merger=EACH,
    output=24,
    rope_theta=10000.0,
    table=(6, 6),
    table_kind="interpolated",
    taps=(0,),
    tap_merger=Merger("concat", "layer", False, 1e-6, 24, "gelu", True),
)
TOWERS: Mapping[str, VisionConfig] = {
    "clipped": VisionConfig(
        family="gemma4",
        patch_values=48,
        layers=2,
        hidden=32,
        heads=2,
        head_dim=16,
        mlp=48,
        norm="rms",
        eps=1e-6,
        activation="gelu_tanh",
        gated=True,
        biases=False,
        scale=1.0,
        group=9,
        merger=Merger("mean", "rms", False, 1e-6, 0, None, False, 32**0.5),
        output=40,
        qk_norm=True,
        sandwich=True,
        rope_theta=100.0,
        table=(24, 24),
        table_kind="axes",
        standardize=True,
        columns_first=True,
        clipped=True,
    ),
    "deep stack": QWEN3,
    "windows": VisionConfig(
        family="qwen2_5_vl",
        patch_values=20,
        layers=2,
        hidden=40,
        heads=2,
        head_dim=20,
        mlp=36,
        norm="rms",
        eps=1e-6,
        activation="silu",
        gated=True,
        biases=True,
        scale=20**-0.5,
        group=4,
        merger=Merger("concat", "rms", True, 1e-6, 24, "quick_gelu", True),
        output=24,
        rope_theta=10000.0,
        full_layers=frozenset({1}),
        last_norm=True,
    ),
}


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    made = Device("", 2)
    yield made
    made.close()


def tower(device: Device, cache_dir: Path, config: VisionConfig, dtype: str, *, plain: bool = False) -> IreeVision:
    cpu = Cpu.named("host")
    ops = PlainOps(dtype) if plain else TiledOps(dtype, arithmetic_of(cpu.features, dtype), threads=2, pause=cpu.pause)
    graphs = TowerGraphs.of(config, ops)
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())
    module = device.load(compiler.compile(graphs.module()), None, "model")
    return IreeVision(device, graphs, module, random_parameters(config))


@pytest.mark.parametrize("name", TOWERS)
def test_rows_are_those_of_numpy(name: str, device: Device, cache_dir: Path) -> None:
    config = TOWERS[name]
    vision = tower(device, cache_dir, config, "float32")
    windows = config.full_layers is not None
    # One block, and more than one, of which the last one is not whole.
    for rows, columns in ((2, 3), (9, 8)):
        image = random_image(config, min(rows, 40 // config.group), columns, windows=windows)
        expected = NumpyTower(config, random_parameters(config)).rows(image)
        found = finish(vision.begin(image))
        assert found.shape == (image.count, vision.width)
        np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
    assert vision.memory()["vision_buffers"] == 0
    vision.close()
