"""The families that are batched on MLX are named without the import of mlx-lm."""

from workers.checkpoints.architectures.families import FAMILIES
from workers.mlx.families import BATCHED, mlx_lm_has
from workers.mlx.loading.adapters import ADAPTERS


def test_batched_families_have_an_adapter_each() -> None:
    assert set(ADAPTERS) == BATCHED
    assert set(FAMILIES) >= BATCHED


def test_names_are_modules_of_mlx_lm() -> None:
    assert mlx_lm_has("nemotron_h")
    assert mlx_lm_has("lfm2-vl")
    assert mlx_lm_has("falcon_mamba")
    assert not mlx_lm_has("nonsense")
    assert not mlx_lm_has("../models/llama")
    assert not mlx_lm_has("a" * 65)
