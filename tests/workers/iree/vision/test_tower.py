"""The graphs of vision towers against numpy, with random parameters."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.vision_tower import NumpyTower
from tests.workers.iree.vision.prompted import finish
from tests.workers.iree.vision.random_towers import random_image, random_parameters
from workers.engine.runner import NotFiniteError
from workers.iree.build.compiler import Compiler
from workers.iree.build.tower_graphs import TowerGraphs
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.vision.encoder import IreeVision
from workers.vision.config import Merger, Mix, VisionConfig
from workers.vision.patches import ImagePatches

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
        value_norm=True,
        sandwich=True,
        rope_theta=100.0,
        table=(24, 24),
        table_kind="axes",
        standardize=True,
        columns_first=True,
        clipped=True,
    ),
    "deep stack": QWEN3,
    "further": VisionConfig(  # what GLM-V, GLM-OCR, CLIP and Pixtral have
        family="glm4v",
        patch_values=20,
        layers=1,
        hidden=36,
        heads=3,
        head_dim=12,
        mlp=24,
        norm="rms",
        eps=1e-5,
        activation="silu",
        gated=True,
        biases=False,
        scale=12**-0.5,
        group=4,
        merger=Merger(
            "concat",
            None,
            False,
            1e-5,
            20,
            "silu",
            False,
            mixes=(Mix(28, bias=True), Mix(28, norm="layer", activation="gelu")),
            gated=True,
        ),
        output=24,
        values_norm="layer",
        patch_norm="rms",
        placed_norm="layer",
        patch_bias=True,
        qk_norm=True,
        extra=True,
        table=(24, 24),
        last_norm=True,
    ),
    "no layers": VisionConfig(
        family="gemma4_unified",
        patch_values=20,
        layers=0,
        hidden=36,
        heads=1,
        head_dim=2,
        mlp=1,
        norm="layer",
        eps=1e-5,
        activation="gelu_tanh",
        gated=False,
        biases=False,
        scale=1.0,
        group=1,
        merger=Merger("concat", "rms", False, 1e-6, 0, None, False),
        output=24,
        values_norm="layer",
        patch_norm="layer",
        placed_norm="layer",
        patch_bias=True,
        table=(48, 48),
        table_kind="axes",
    ),
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


CASES = {
    "clipped": ("clipped", "float32", False),
    "clipped bfloat16": ("clipped", "bfloat16", False),
    "deep stack": ("deep stack", "float32", False),
    "deep stack in plain StableHLO": ("deep stack", "float32", True),
    "further": ("further", "float32", False),
    "further bfloat16": ("further", "bfloat16", False),
    "further in plain StableHLO": ("further", "float32", True),
    "no layers": ("no layers", "float32", False),
    "windows": ("windows", "float32", False),
    "windows in plain StableHLO": ("windows", "float32", True),
}
TILED = replace(QWEN3, family="llava_onevision", layers=1, group=1, taps=(), tap_merger=None, full_layers=frozenset())
"""Each layer attends within windows."""
ERRORS = {"float32": 1e-4, "bfloat16": 0.05}
"""The largest error of a number, beside the largest number."""


@pytest.mark.parametrize(
    ("name", "dtype", "plain"),
    [
        pytest.param(*each, id=name, marks=[] if name in ("clipped", "further") else [pytest.mark.exhaustive])
        for name, each in CASES.items()
    ],
)
def test_rows_are_those_of_numpy(name: str, dtype: str, plain: bool, device: Device, cache_dir: Path) -> None:
    config = TOWERS[name]
    vision = tower(device, cache_dir, config, dtype, plain=plain)
    # One block, and more than one, of which the last one is not whole.
    for rows, columns in ((2, 3), (36 // config.group, 8)):
        image = random_image(config, rows, columns, windows=config.full_layers is not None)
        expected = NumpyTower(config, random_parameters(config)).rows(image)
        found = finish(vision.begin(image))
        assert found.shape == (image.count, vision.width)
        np.testing.assert_allclose(found, expected, rtol=0, atol=ERRORS[dtype] * np.abs(expected).max())
    for wrong, problem in refused(config).items():
        with pytest.raises(ValueError, match=problem):
            vision.begin(wrong)
    damaged = replace(image, values=np.full_like(image.values, np.nan))
    with pytest.raises(NotFiniteError):
        finish(vision.begin(damaged))
    vision.close()


def test_tiles_are_computed_in_runs_where_devices_attend_to_the_whole_capacity(
    device: Device, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.iree.build.tower_graphs.PLAIN_PATCHES", (128, 512))
    vision, windowed = tower(device, cache_dir, TILED, "float32", plain=True), replace(TILED, full_layers=None)
    assert (vision.graphs.capacities, vision.max_patches) == ((128,), 65536)
    assert replace(vision.graphs, config=windowed).max_patches == 512
    assert replace(vision.graphs, config=replace(TILED, table=(12, 11))).max_patches == 128, "one tile is too large"
    image = random_image(TILED, 30, 10, windows=True)
    expected = NumpyTower(TILED, random_parameters(TILED)).rows(image)
    encoding, parts = vision.begin(image), 1
    held = vision.memory()["vision_buffers"]
    while not encoding.advance():
        parts += 1
    assert parts == encoding.parts == 3 * 4, "three runs of one block"
    np.testing.assert_allclose(encoding.rows(), expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    encoding.close()
    encoding = vision.begin(random_image(TILED, 1, 2, windows=True))
    assert vision.memory()["vision_buffers"] == held, "one run is held at a time"
    encoding.close()
    whole = replace(image, windows=np.zeros(len(image.values), np.int32))
    with pytest.raises(ValueError, match="windows: one has 300 patches, the tower takes 128"):
        vision.begin(whole)
    vision.close()


@pytest.mark.exhaustive
def test_a_large_image_has_graphs_of_its_own_where_devices_attend_to_the_whole_capacity(
    device: Device, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.iree.build.tower_graphs.PLAIN_PATCHES", (128, 256))
    vision = tower(device, cache_dir, QWEN3, "float32", plain=True)
    assert [name for name in vision.graphs.names if "256" in name] == ["tower_keys_256", "tower_layer_256"]
    assert vision.max_patches == 256
    for rows in (4, 5, 8):  # 128, 160 and 256 patches
        image = random_image(QWEN3, rows, 8)
        expected = NumpyTower(QWEN3, random_parameters(QWEN3)).rows(image)
        found = finish(vision.begin(image))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    with pytest.raises(ValueError, match="patches: 288, the tower takes 1 to 256"):
        vision.begin(random_image(QWEN3, 9, 8))
    vision.close()


def test_runs_of_an_image_have_whole_windows() -> None:
    image = random_image(TILED, 1, 10, windows=True)
    assert image.windows is not None
    assert image.windows.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    for most, lengths in ((3, [3, 2, 3, 2]), (4, [3, 2, 3, 2]), (5, [5, 5]), (7, [5, 5]), (8, [8, 2]), (9, [8, 2])):
        runs = image.runs(most)
        assert [len(run.values) for run in runs] == lengths
        np.testing.assert_array_equal(np.concatenate([run.values for run in runs]), image.values)
        np.testing.assert_array_equal(np.concatenate([run.places for run in runs]), image.places)
    assert image.runs(10) == [image]
    with pytest.raises(ValueError, match="windows: one has 3 patches, the tower takes 2"):
        image.runs(2)


def refused(config: VisionConfig) -> dict[ImagePatches, str]:
    """Return images that a tower cannot take, and why."""
    image = random_image(config, 2, 3, windows=config.full_layers is not None)
    found = {
        replace(image, values=image.values[:0]): "patches: 0, the tower takes 1 to",
        replace(image, values=image.values[:-1]): (
            f"are no groups of {config.group}" if config.group > 1 else "tokens: 6 of 5 patches"
        ),
        replace(image, values=image.values[:, 1:]): f"with {config.patch_values} values each",
        replace(image, tokens=(2, 2)): f"tokens: 4 of {6 * config.group} patches",
    }
    if config.full_layers is not None:
        found[replace(image, windows=None)] = "windows: the tower has layers that attend within them"
    return found


def test_an_open_computation_may_outlive_the_tower_and_the_device(cache_dir: Path) -> None:
    """In a process of its own: a buffer that is released after its device ends the process."""
    run = subprocess.run(
        [sys.executable, "-c", OUTLIVED, str(cache_dir)], cwd=Path(__file__).parents[4], capture_output=True, text=True
    )
    assert (run.returncode, run.stdout.split()) == (0, ["closed", "dropped"]), run.stderr


OUTLIVED = """
import gc, sys
from pathlib import Path
from tests.workers.iree.vision.test_tower import TOWERS, Device, random_image, tower

config = TOWERS["clipped"]
for end in ("closed", "dropped"):
    device = Device("", 2)
    vision = tower(device, Path(sys.argv[1]), config, "float32")
    encoding = vision.begin(random_image(config, 4, 8))
    encoding.advance()
    if end == "closed":
        vision.close()
        device.close()
        assert vision.memory()["vision_buffers"] == 0
        encoding.close()
    encoding.itself = encoding
    del vision, device, encoding
    gc.collect()
    print(end, flush=True)
"""
