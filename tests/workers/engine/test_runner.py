"""Checks of what a runner is asked to compute: nothing outside of its slots."""

from collections.abc import Sequence

import pytest

from protocol.request import Sampling
from workers.engine.runner import (
    Chunk,
    DecodeRow,
    RunnerCapabilities,
    check_chunks,
    check_copy,
    check_rows,
    check_specs,
)
from workers.sampling.sample_spec import SampleSpec

CAPABILITIES = RunnerCapabilities("scripted", "none", "float32", 2, 8, 100, (4,), exact_rows=True)
WRITTEN = (3, 7)
SPEC = SampleSpec(Sampling(), 1)
WRONG = [
    ((-1, (1,), 0, 0), "slot"),
    ((2, (1,), 0, 0), "slot"),
    ((0, (-1,), 0, 0), "tokens"),
    ((0, (100,), 0, 0), "tokens"),
    ((0, (1,), -1, 0), "start"),
    ((0, (1,), 4, 0), "start"),
    ((0, (1,), 0, -1), "position"),
]
RIGHT = [(0, (0,), 0, 0), (1, (99,), 7, 7), (0, (1,), 3, 100)]


def chunks(*given: tuple[int, tuple[int, ...], int, int]) -> list[Chunk]:
    return [Chunk(*each) for each in given]


def rows(given: Sequence[tuple[int, tuple[int, ...], int, int]]) -> list[DecodeRow]:
    return [DecodeRow(slot, token, start, position, SPEC) for slot, (token,), start, position in given]


@pytest.mark.parametrize(("wrong", "field"), WRONG)
def test_a_row_outside_of_its_slot_is_refused(wrong: tuple[int, tuple[int, ...], int, int], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        check_chunks(CAPABILITIES, WRITTEN.__getitem__, chunks(wrong))
    with pytest.raises(ValueError, match=field):
        check_rows(CAPABILITIES, WRITTEN, rows([wrong]))


def test_one_wrong_row_is_enough() -> None:
    with pytest.raises(ValueError, match="tokens"):
        check_rows(CAPABILITIES, WRITTEN, rows([(0, (1,), 0, 0), (1, (100,), 0, 0)]))


@pytest.mark.parametrize("right", RIGHT)
def test_a_row_at_the_edge_of_its_slot_is_taken(right: tuple[int, tuple[int, ...], int, int]) -> None:
    check_chunks(CAPABILITIES, WRITTEN.__getitem__, chunks(right))
    check_rows(CAPABILITIES, WRITTEN, rows([right]))


def test_a_full_slot_takes_no_row() -> None:
    with pytest.raises(ValueError, match="a slot has 8 rows"):
        check_rows(CAPABILITIES, (8, 0), rows([(0, (1,), 8, 8)]))


def test_a_slot_has_one_row_a_step() -> None:
    twice = [(0, (1,), 0, 0), (0, (1,), 1, 1)]
    with pytest.raises(ValueError, match="one row a slot"):
        check_chunks(CAPABILITIES, WRITTEN.__getitem__, chunks(*twice))
    with pytest.raises(ValueError, match="one row a slot"):
        check_rows(CAPABILITIES, WRITTEN, rows(twice))


def test_a_chunk_has_tokens_and_ends_within_its_slot() -> None:
    check_chunks(CAPABILITIES, WRITTEN.__getitem__, chunks((0, (1,) * 5, 3, 3)))
    with pytest.raises(ValueError, match="a slot has 8 rows"):
        check_chunks(CAPABILITIES, WRITTEN.__getitem__, chunks((0, (1,) * 6, 3, 3)))
    with pytest.raises(ValueError, match="tokens"):
        check_chunks(CAPABILITIES, WRITTEN.__getitem__, chunks((0, (), 3, 3)))


def test_several_chunks_need_exact_rows_and_a_spec_each() -> None:
    pair = chunks((0, (1,), 0, 0), (1, (1,), 0, 0))
    inexact = RunnerCapabilities("scripted", "none", "float32", 2, 8, 100, (4,))
    check_specs(CAPABILITIES, pair, [SPEC, None])
    check_specs(inexact, pair[:1], [SPEC])
    with pytest.raises(ValueError, match="one chunk per call"):
        check_specs(inexact, pair, [SPEC, None])
    with pytest.raises(ValueError, match="1 for 2 chunks"):
        check_specs(CAPABILITIES, pair, [SPEC])


@pytest.mark.parametrize(("source", "target", "length"), [(0, 1, 3), (0, 1, 0), (1, 1, 7)])
def test_written_rows_are_copied(source: int, target: int, length: int) -> None:
    check_copy(CAPABILITIES, WRITTEN.__getitem__, source, target, length)


@pytest.mark.parametrize(
    ("source", "target", "length", "field"),
    [(-1, 0, 0, "source"), (2, 0, 0, "source"), (0, -1, 0, "target"), (0, 2, 0, "target"), (0, 1, 4, "length")],
)
def test_other_rows_are_not(source: int, target: int, length: int, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        check_copy(CAPABILITIES, WRITTEN.__getitem__, source, target, length)
    with pytest.raises(ValueError, match="length"):
        check_copy(CAPABILITIES, WRITTEN.__getitem__, 0, 1, -1)
