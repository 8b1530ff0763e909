"""Rows of one slot side by side in a decode step share the KV blocks that are read, and have the bits of rows alone."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.kernels.attention.attended import Attended
from tests.workers.iree.kernels.running import ARITHMETICS, Run
from workers.iree.kernels.attention.shape import KV_BLOCK, MAX_SHARED_ROWS, Attention, AttentionShape
from workers.iree.kernels.ir.arithmetic import Bf16Dot

RUNS: dict[str, tuple[int, dict[str, int], dict[str, Any]]] = {
    "f32": (0, {}, {}),
    "bf16-pairs": (-1, {"queries": 6}, {}),
    "bf16-widened-window-int8": (2, {"bits": 8}, {"window": 70}),
    "unpacked-window-int4": (-1, {"bits": 4, "queries": 32}, {"window": 150}),
    "ring-three-threads": (0, {"ring": 2 * KV_BLOCK, "bits": 8}, {"window": 70, "threads": 3}),
    "values-three-threads": (2, {"values": 64}, {"threads": 3, "softcap": 2.0}),
}
FEW = ("f32", "unpacked-window-int4", "ring-three-threads")
"""Those that the whole suite runs."""


@pytest.mark.parametrize(
    ("arithmetic", "sizes", "options"),
    [
        pytest.param(
            *each, id=name, marks=[*ARITHMETICS[each[0]].marks, *([] if name in FEW else [pytest.mark.exhaustive])]
        )
        for name, each in RUNS.items()
    ],
)
def test_rows_of_a_run_have_the_bits_of_rows_alone(
    run: Run, arithmetic: int, sizes: dict[str, int], options: dict[str, Any]
) -> None:
    """Rows of one slot side by side: runs of every length, also over the end of a KV block and of a run."""
    kind: Any = ARITHMETICS[arithmetic].values[0]
    held = Attended(run, kind, eps=None, **sizes)
    batch, last = MAX_SHARED_ROWS + 2, 259
    attention_kind = Attention(held.shape_of(batch, 1), kind, **options)
    assert attention_kind.shared_rows == MAX_SHARED_ROWS
    for start in range(0, last + 1, 65):
        held.place([1], np.arange(start, start + 65, dtype=np.int32)[None])
    padding = held.capacity - 1 if not held.ring else held.attended
    steps = [[1] * count + [2, 1, 2, 1] * 3 for count in range(1, MAX_SHARED_ROWS + 1)]
    steps += [[2] + [1] * (batch - 1), [1] * batch]
    alone: dict[tuple[int, int], NDArray[np.float32]] = {}
    for slots in [each[:batch] for each in steps]:
        counts = {1: slots.count(1), 2: slots.count(2)}
        next_row = {1: last + 1 - counts[1], 2: 0}
        rows = np.full((batch, 1), padding, np.int32)
        for at, slot in enumerate(slots):
            if next_row[slot] < (last + 1 if slot == 1 else 3):
                rows[at], next_row[slot] = next_row[slot], next_row[slot] + 1
        out = held.attend(held.place(slots, rows), slots, rows, **options)
        for at, (slot, row) in enumerate(zip(slots, rows[:, 0].tolist(), strict=True)):
            if row == padding:
                continue
            if (slot, row) not in alone:
                one = np.full((1, 1), row, np.int32)
                alone[slot, row] = held.attend(held.place([slot], one), [slot], one, **options)[0]
            np.testing.assert_array_equal(out[at], alone[slot, row])


def test_rows_that_share_a_block_are_as_many_as_their_states_have_room_for() -> None:
    """256 query heads of one KV head with values of 512 lanes take more memory for a row than there is for all."""

    def shared(batch: int, **sizes: int) -> int:
        given = {"query_heads": 16, "kv_heads": 1, "head_dim": 64, "value_width": 0, "tokens": 1} | sizes
        shape = AttentionShape(
            layers=1, slots=8, capacity=128, attended=64, batch=batch, scale=1.0, rope_dims=64, **given
        )
        return Attention(shape, Bf16Dot()).shared_rows

    assert [shared(batch) for batch in (1, 2, 8, 32)] == [1, 2, MAX_SHARED_ROWS, MAX_SHARED_ROWS]
    assert shared(8, tokens=16) == 1
    assert shared(8, query_heads=256, value_width=512) == 1
