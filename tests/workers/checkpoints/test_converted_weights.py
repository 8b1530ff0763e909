"""Checkpoints of hybrid models as mlx-lm's converter writes them, beside the originals."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint, stack_experts, write_safetensors
from workers.checkpoints.checkpoint import open_weights

CENTRED = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "_norm.weight")


def convert_as_mlx_lm(source: Path, target: Path, *, centred: bool) -> Path:
    """Write what `sanitize` of mlx-lm's models makes of a checkpoint."""
    shutil.copytree(source, target)

    def converted(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
        if name.endswith(("conv1d.weight", "conv.conv.weight")):
            return tensor.swapaxes(1, 2)
        return tensor + np.float32(1) if centred and name.endswith(CENTRED) else tensor

    tensors = stack_experts(dict(open_weights(source)))
    write_safetensors(target / "model.safetensors", {name: converted(name, each) for name, each in tensors.items()})
    return target


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"])
def test_tensors_are_those_of_the_original(tmp_path: Path, family: str) -> None:
    source = make_checkpoint(tmp_path / "original", family)
    original = open_weights(source)
    converted = open_weights(convert_as_mlx_lm(source, tmp_path / "converted", centred=family != "lfm2"))
    assert set(converted) == set(original)
    for name in original:
        assert converted.shape(name) == original.shape(name), name
        np.testing.assert_allclose(converted[name], original[name], atol=2e-7, rtol=0, err_msg=name)
        np.testing.assert_array_equal(converted.take(name, original.shape(name)), converted[name])
