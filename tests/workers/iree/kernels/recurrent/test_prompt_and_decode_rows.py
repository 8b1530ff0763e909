"""The rows of a prompt have the bits of decode rows, whose kernels prefetch."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.kernels.running import Run, random
from workers.checkpoints.architectures.parts import GatedDelta, Mamba2
from workers.iree.kernels.recurrent.gated_delta import DeltaRule, gated_delta
from workers.iree.kernels.recurrent.selective_state import SelectiveState, selective_state
from workers.iree.kernels.recurrent.state_rows import StateShape

DELTA = GatedDelta(key_heads=1, value_heads=2, key_dim=16, value_dim=16, taps=2)
MAMBA = Mamba2(heads=2, head_dim=16, groups=1, state=16, taps=2, step_limit=(0.1, 2.0))
ROWS, OFFSET = 18, 3
"""More than the 16 rows whose gates are computed together, and the layer's place in a state."""


def delta(rows: int, *, scattered: bool) -> str:
    shape = StateShape(rows, 3, OFFSET + DELTA.state_values)
    return gated_delta(f"baton_delta_{rows}", DeltaRule(shape, DELTA, 2, scattered))


def mamba(rows: int, *, scattered: bool) -> str:
    shape = StateShape(rows, 3, OFFSET + MAMBA.state_values)
    return selective_state(f"baton_mamba_{rows}", SelectiveState(shape, MAMBA, 2, scattered))


@pytest.mark.parametrize(
    ("text", "sizes", "width", "heads"),
    [
        pytest.param(delta, DELTA, 2 * DELTA.value_heads, (2, DELTA.value_heads), id="gated_delta"),
        pytest.param(mamba, MAMBA, MAMBA.projected, (3, MAMBA.heads), id="selective_state"),
    ],
)
def test_rows_of_a_prompt_are_those_of_decode_steps(
    run: Run, text: Callable[..., str], sizes: GatedDelta | Mamba2, width: int, heads: tuple[int, int]
) -> None:
    """Beside a row of another slot and padding, and written to another place."""
    x, other, weights = random(ROWS, sizes.channels), random(ROWS, width, seed=1), [*random(*heads, seed=2)]
    states, offset = random(3, OFFSET + sizes.state_values, seed=3), np.array([OFFSET], np.int32)
    places = np.zeros((2, ROWS), np.int32)
    out, after = run(text(ROWS, scattered=False), x, other, *weights, places, offset, states)
    np.testing.assert_array_equal(after[1:], states[1:])
    place, one = 0, states
    for row in range(ROWS):
        rows = [row, ROWS - 1 - row, 0]
        places = np.array([[place, 1, -1], [2 - place, 1, -1]], np.int32)
        found, one = run(text(3, scattered=True), x[rows], other[rows], *weights, places, offset, one)
        np.testing.assert_array_equal(found[0], out[row])
        place = 2 - place
    first = OFFSET + (sizes.taps - 1) * sizes.channels
    matrices: Callable[[NDArray[np.float32], int], NDArray[np.float32]] = lambda states, at: states[at, first:]  # noqa: E731
    np.testing.assert_array_equal(matrices(one, place), matrices(after, 0))
    assert np.isfinite(out).all()
    assert not np.array_equal(matrices(after, 0), matrices(states, 0))
