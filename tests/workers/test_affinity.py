"""Cores that this process may use: what the cgroup allows, on every way to a runner."""

from pathlib import Path

import pytest

from cli import doctor, model
from workers import affinity, backends
from workers.affinity import usable_cores


def test_everybody_counts_the_quota() -> None:
    """A second count that knew the affinity mask alone would start a thread a core of the host."""
    assert {part.usable_cores for part in (backends, model, doctor)} == {affinity.usable_cores}


@pytest.mark.parametrize(
    ("text", "most"), [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1), ("junk", None), ("1 0", None)]
)
def test_cores_by_quota(tmp_path: Path, text: str, most: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(text)
    free = usable_cores(tmp_path / "none")
    assert free >= 1
    assert usable_cores(file) == (free if most is None else most)
