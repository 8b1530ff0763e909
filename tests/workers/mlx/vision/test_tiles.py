"""Images in tiles on MLX: a cancel, a fault or a death while they are computed, and batches with texts."""

from pathlib import Path

import pytest

from tests.vision_checkpoints import make_vision_checkpoint
from tests.workers.mlx.conftest import Load
from tests.workers.tiled_gate import run_tiled_gate
from workers.mlx.vision import loading
from workers.mlx.vision.encoder import MlxPartSize

pytestmark = pytest.mark.reference


@pytest.mark.parametrize(
    "family", [pytest.param("internvl", marks=pytest.mark.exhaustive), pytest.param("llava_onevision")]
)
def test_tokens_are_those_of_an_undisturbed_run(
    family: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    path = make_vision_checkpoint(tmp_path, family, text={"num_hidden_layers": 2})
    for name in ("CPU_PART", "REFERENCE_BLAS_PART"):  # small ones, as the tower is
        monkeypatch.setattr(loading, name, MlxPartSize(32, 1e6))
    run_tiled_gate(load(path, context=512), path, lambda: load(path, context=512))
