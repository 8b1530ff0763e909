"""The digest of a checkpoint."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import config_digest


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path / "a", seed=1)
    same = make_checkpoint(tmp_path / "b", seed=1)
    other = make_checkpoint(tmp_path / "c", seed=2)
    assert config_digest(first) == config_digest(same)
    assert config_digest(first) != config_digest(other)


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.999])
def test_digest_tells_a_model_of_which_one_matrix_was_trained_further(tmp_path: Path, place: float) -> None:
    """Samples find a change anywhere: the graph cache and failover take equal digests for equal models."""
    file = tmp_path / "model.safetensors"
    values = bytearray(8 << 20)
    file.write_bytes(values)
    before = config_digest(tmp_path)
    start, length = int(place * (7 << 20)), 1 << 16
    values[start : start + length] = b"1" * length
    file.write_bytes(values)
    assert config_digest(tmp_path) != before
