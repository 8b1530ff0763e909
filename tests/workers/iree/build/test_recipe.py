"""The devices whose graphs have kernels of our own, and those whose graphs are plain."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.families.uneven import UNEVEN
from tests.vision_checkpoints import make_vision_checkpoint
from workers.checkpoints.checkpoint import ModelConfig
from workers.errors import LoadRefused
from workers.iree.build.recipe import Recipe, choose_ops
from workers.iree.device.device import Device
from workers.iree.device.drivers import GENERIC_DEVICE
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import WidthPadding
from workers.load_options import LoadOptions


@pytest.mark.parametrize(
    ("share", "padded"), [(1.0, False), (0.75, False), (0.625, True)], ids=["all", "12 lanes", "10 lanes"]
)
def test_lanes_that_are_rotated_are_padded_to_pairs_of_pairs(tmp_path: Path, share: float, padded: bool) -> None:
    path = make_checkpoint(tmp_path / "model", "phi3", tied=False, fields={"partial_rotary_factor": share})
    config = ModelConfig.from_dir(path)
    ops = choose_ops(config, "bfloat16", local=True)
    assert isinstance(ops, TiledOps)
    assert (ops.padding is not None) == padded
    assert isinstance(choose_ops(config, "bfloat16", local=False), PlainOps)


@pytest.mark.parametrize("case", UNEVEN)
def test_a_cpu_has_kernels_for_any_width(tmp_path: Path, case: str) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, **UNEVEN[case]))
    ops = choose_ops(config, "bfloat16", local=True)
    assert isinstance(ops, TiledOps)
    assert ops.padding == WidthPadding.of(config) is not None


@pytest.mark.parametrize(
    ("uri", "slots", "mtp"),
    [("local-sync", 2, True), ("local-sync", 1, False), (GENERIC_DEVICE, 2, False)],
    ids=["drafts", "one row", "rows are not exact"],
)
def test_a_head_that_cannot_draft_is_left_out(tmp_path: Path, uri: str, slots: int, mtp: bool) -> None:
    path = make_checkpoint(tmp_path, "mimo")
    device = Device(uri, 1)
    options = LoadOptions(device=uri, slots=slots, context=64, cache_dir=tmp_path)
    recipe = Recipe.of(path, ModelConfig.from_dir(path).with_mtp(), device, options)
    device.close()
    assert recipe.plan().config.mtp == mtp


@pytest.mark.parametrize(("family", "width"), [("qwen2_vl", 1), ("qwen3_vl", 2)], ids=["first layer", "deep stack"])
def test_rows_that_requests_give_are_as_wide_as_those_of_images(tmp_path: Path, family: str, width: int) -> None:
    path = make_vision_checkpoint(tmp_path / "model", family)
    config, device = ModelConfig.from_dir(path), Device("local-sync", 1)
    for embeddings, vision in ((True, False), (False, True), (True, True)):
        options = LoadOptions(
            device="local-sync", slots=2, context=64, cache_dir=tmp_path, embeddings=embeddings, vision=vision
        )
        if embeddings and vision and width > 1:
            with pytest.raises(LoadRefused, match=r"embeddings: rows of \d+ numbers.*--no-vision"):
                Recipe.of(path, config, device, options)
        else:
            assert Recipe.of(path, config, device, options).vision == vision
    device.close()
