"""The number of states of a slot, at its bounds."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.checkpoints.architectures.configs import read
from tests.workers.checkpoints.architectures.test_hybrid import LFM2_1B, QWEN3_5
from workers.checkpoints.architectures.parts import ShortConvolution
from workers.iree.model.state_versions import MAX_ROLLBACK_ROWS, ROLLBACK_BYTES, rollback_rows, state_versions


def test_small_states_as_many_as_a_step_has_rows(tmp_path: Path) -> None:
    config = read(tmp_path, LFM2_1B)
    assert [rollback_rows(config, slots) for slots in (1, 2, 7, 8, 64)] == [0, 2, 7, MAX_ROLLBACK_ROWS, 8]
    assert state_versions(config, 64) == 9
    assert rollback_rows(read(tmp_path, QWEN3_5), 16) == 2


def test_no_rows_of_a_model_without_states(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (rollback_rows(config, 16), state_versions(config, 16)) == (0, 1)


@pytest.mark.parametrize(("excess", "rows"), [(0, 2), (1, 0)])
def test_three_states_fit_or_there_is_one(tmp_path: Path, excess: int, rows: int) -> None:
    config = read(tmp_path, LFM2_1B)
    layers = config.state_layers
    channels = ROLLBACK_BYTES // 3 // (4 * layers) + excess
    assert rollback_rows(replace(config, convolution=ShortConvolution(channels, 2)), 16) == rows
