"""The inputs of decode graphs: the step's rows, and padding rows in all others."""

import numpy as np
import pytest

from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.batch_inputs import (
    FIRST_POSITIONS,
    DecodeInputs,
    RopeTable,
    SlotRun,
    attended_ends,
    mrope_axes,
    runs_of,
)
from workers.iree.device.device import Device
from workers.sampling.sample_spec import SampleSpec

SPEC = SampleSpec(Sampling(), 1)
SPARE = 99
CONTEXT = 8


@pytest.fixture
def angles() -> RopeTable:
    return RopeTable(np.array([1.0, 0.1], np.float32), np.array([1.0, 2.0], np.float32), CONTEXT)


@pytest.mark.parametrize("position", [0, CONTEXT - 1, CONTEXT, 3 * CONTEXT])
def test_the_angles_of_a_position_are_those_of_many(angles: RopeTable, position: int) -> None:
    for one, many in zip(angles.of(position), angles.at(np.array([0, position])), strict=True):
        assert one.tolist() == many[1].tolist()


@pytest.mark.parametrize("position", [FIRST_POSITIONS - 1, FIRST_POSITIONS, 9999, 10_000])
def test_the_angles_of_long_contexts_are_computed_when_they_are_needed(position: int) -> None:
    frequencies, factors = np.array([1.0, 0.1], np.float32), np.array([1.0, 2.0], np.float32)
    short, long = (RopeTable(frequencies, factors, context) for context in (1, 10_000))
    for one, other in zip(short.of(position), long.of(position), strict=True):
        assert one.tolist() == other.tolist()
    assert long.at(np.array([position]))[0].tolist() == [long.of(position)[0].tolist()]


@pytest.mark.parametrize("driver", ["local-sync", "cuda"])
def test_a_step_leaves_nothing_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, angles: RopeTable, driver: str
) -> None:
    device = Device("local-sync", 1)
    monkeypatch.setattr(device, "driver", driver)  # other drivers are given a new buffer each time
    inputs = DecodeInputs(device, 4, angles, SPARE, 4)
    steps = [
        ([0, 1, 2], [DecodeRow(3, 30, 5, 6, SPEC), DecodeRow(0, 31, 2, 2, SPEC), DecodeRow(1, 32, 7, 40, SPEC)]),
        ([2], [DecodeRow(2, 40, 1, 1, SPEC)]),
        ([], []),
    ]
    for indices, rows in steps:
        tokens, cos, sin, kv_rows, slots = (device.download(view) for view in inputs.write(indices, rows))
        expected = {index: (0, SPARE, index) for index in range(4)}
        expected |= {index: (row.token, row.start, row.slot) for index, row in zip(indices, rows, strict=True)}
        given = zip(tokens[:, 0].tolist(), kv_rows[:, 0].tolist(), slots.tolist(), strict=True)
        assert dict(enumerate(given)) == expected
        for index, row in zip(indices, rows, strict=True):
            for one, many in zip(angles.of(row.position), (cos, sin), strict=True):
                assert one.tolist() == many[index, 0].tolist()


@pytest.mark.parametrize(
    ("sections", "interleaved", "expected"),
    [
        ((4, 2, 2), True, [0, 1, 2, 0, 1, 2, 0, 0]),
        ((4, 2, 2), False, [0, 0, 0, 0, 1, 1, 2, 2]),
        ((2, 1, 1), True, [0, 1, 2, 0, 0, 0]),
    ],
    ids=str,
)
def test_each_angle_has_an_axis(sections: tuple[int, ...], interleaved: bool, expected: list[int]) -> None:
    assert mrope_axes(sections, len(expected), interleaved=interleaved).tolist() == expected


def test_angles_on_three_axes_are_those_of_each_axis() -> None:
    frequencies, factors = np.array([1.0, 0.5, 0.1], np.float32), np.ones(3, np.float32)
    table = RopeTable(frequencies, factors, CONTEXT, np.array([0, 1, 2], np.intp))
    same = table.at_axes(np.array([[2, 5]] * 3))
    for whole, each in zip(same, table.at(np.array([2, 5])), strict=True):
        assert whole.tolist() == each.tolist()
    cos, _ = table.at_axes(np.array([[1], [2], [3]]))
    assert cos[0].tolist() == [table.at(np.array([position]))[0][0, at] for at, position in enumerate((1, 2, 3))]
    with pytest.raises(ValueError, match="axes: the model's positions have one axis"):
        RopeTable(frequencies, factors, CONTEXT).at_axes(np.array([[1], [2], [3]]))


def test_a_run_has_a_first_position_where_its_positions_follow_each_other() -> None:
    chunk = Chunk(0, (3, 4, 5, 6), 10, 0, axes=np.array([[7, 8, 9, 9]] * 3, np.int32))
    assert [run.first_position for run in runs_of(chunk, -1, 3)] == [7, 9]
    assert [run.first_position for run in runs_of(chunk, -1, 4)] == [None]
    assert SlotRun(0, (3, 4), 1, 5, -1).first_position == 5
    assert SlotRun(0, (3, 4), 1, 5, -1, positions=(5, 7)).first_position is None


def test_rows_attend_up_to_themselves_or_to_the_end_of_their_image() -> None:
    chunk = Chunk(1, (3, -1, -2, -3, 4), 10, 10, ends=(11, 14, 14, 14, 15))
    runs = [*runs_of(chunk, -1, 2), SlotRun(0, (3,), 4, 4, -1)]
    assert attended_ends(runs, (4, 2)).tolist() == [[11, 14], [14, 14], [15, 0], [5, 0]]
    with pytest.raises(ValueError, match="ends: an image of slot 1 does not fit into one prefill call"):
        attended_ends(runs[:1], (1, 2))
