"""The bytes of recurrent states, before a model is loaded."""

import importlib
import importlib.util
from pathlib import Path

import pytest
from msgspec import structs

from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe
from workers.process.startup.state_sizes import all_states_bytes, one_state_bytes

CONVOLUTION = 2 * 64
"""Values of the state of LFM2's layer: the last two rows of 64 channels."""
DELTA = (3 * (2 * 64 + 64), 64 * 32)
"""Those of Qwen3.5's: the last three rows of all channels, and the matrices."""
MAMBA = (3 * (128 + 2 * 2 * 16), 128 * 16)
"""Those of Granite 4's: the last three rows of inputs, B and C, and the matrices."""


@pytest.mark.parametrize(
    ("family", "backend", "dtype", "size"),
    [
        ("lfm2", "iree", "bfloat16", 4 * CONVOLUTION),
        ("lfm2", "mlx", "float32", 4 * CONVOLUTION),
        ("lfm2", "mlx", "bfloat16", 2 * CONVOLUTION),
        ("qwen3_5_text", "iree", "bfloat16", 4 * sum(DELTA)),
        ("qwen3_5_text", "mlx", "float32", 4 * sum(DELTA)),
        ("qwen3_5_text", "mlx", "bfloat16", 2 * DELTA[0] + 4 * DELTA[1]),
        ("granitemoehybrid", "iree", "bfloat16", 4 * sum(MAMBA)),
        ("granitemoehybrid", "mlx", "float32", 4 * sum(MAMBA)),
        ("granitemoehybrid", "mlx", "bfloat16", 2 * MAMBA[0] + 4 * MAMBA[1]),
        ("llama", "iree", "float32", 0),
    ],
)
def test_the_state_of_a_slot(family: str, backend: str, dtype: str, size: int, tmp_path: Path) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, family))
    spec = structs.replace(WorkerSpec("w", "m", str(tmp_path), max_batch_size=4), dtype=dtype)
    assert one_state_bytes(spec, backend, config) == size
    copies = 5 if backend == "iree" and size else 1  # IREE keeps those before four rows as well
    assert all_states_bytes(spec, backend, config) == 4 * copies * size
    if backend == "mlx" and importlib.util.find_spec("mlx") is not None:
        mx, states = (importlib.import_module(name) for name in ("mlx.core", "workers.mlx.hybrid.states"))
        assert states.RecurrentStates(config, 1, getattr(mx, dtype)).slot_bytes == size


def test_a_cache_too_small_for_a_state_is_refused_before_the_load(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "lfm2")
    least = 4 * CONVOLUTION + OVERHEAD_BYTES
    given = WorkerSpec("w", "m", str(path), backend="iree", state_cache_bytes=least)
    asked = structs.replace(given, sources={"state_cache_bytes": "--state-cache-bytes"})
    describe(asked)
    with pytest.raises(LoadRefused, match=f"^state_cache_bytes: .* takes {least}, more than {least - 1}: set {least}"):
        describe(structs.replace(asked, state_cache_bytes=least - 1))
    small = structs.replace(asked, state_cache_bytes=least - 1)
    for other in (structs.replace(small, sources={}), structs.replace(small, prefix_cache=False)):
        describe(other)
    describe(structs.replace(small, state_cache_bytes=0))
