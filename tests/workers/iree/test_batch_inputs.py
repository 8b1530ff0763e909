"""The inputs of decode graphs: the step's rows, and padding rows in all others."""

import numpy as np
import pytest

from protocol.request import Sampling
from workers.engine.runner import DecodeRow
from workers.iree.batch_inputs import FIRST_POSITIONS, DecodeInputs, RopeTable
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
