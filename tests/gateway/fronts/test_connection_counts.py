"""The numbers of connections that fronts share."""

import os
import tempfile
from pathlib import Path

import pytest

from gateway.fronts.connection_counts import ConnectionCounts


def test_each_front_sees_the_numbers_of_the_others() -> None:
    with ConnectionCounts.made(3) as gateway:
        fronts = [ConnectionCounts(os.dup(gateway.descriptor)) for _ in range(3)]  # as processes that inherit it
        for number, front in enumerate(fronts):
            front.note(number, 10**number)
        assert [front.others(number) for number, front in enumerate(fronts)] == [110, 101, 11]
        gateway.note(1, 0)
        assert [front.others(number) for number, front in enumerate(fronts)] == [100, 101, 1]
        for front in fronts:
            os.close(front.descriptor)


def test_there_is_a_number_for_each_front_and_no_more() -> None:
    with ConnectionCounts.made(2) as counts, pytest.raises(IndexError):
        counts.note(2, 1)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_full_disk_does_not_end_the_process_that_notes_a_number(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of a mapped file that nothing was written to needs a block then."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no nameless files in memory")
    with ConnectionCounts.made(3) as counts:
        state = os.fstat(counts.descriptor)
        assert state.st_size == 12
        assert state.st_blocks > 0
        counts.note(2, 7)
        assert counts.others(0) == 7
