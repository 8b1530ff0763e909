"""The packed weights on disk: found again, renewed when the checkpoint changes, repaired when damaged."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoint import ModelConfig
from workers.iree.archive import open_archive
from workers.iree.ops import PlainOps, TiledOps
from workers.iree.tiles import Tiles

OPS = TiledOps("float32", Tiles(16, 1, 16), Tiles(16, 1, 16))


class Packing:
    """Opens the archive and says whether it was made anew."""

    def __init__(self, path: Path, cache_dir: Path) -> None:
        self.path = path
        self.cache_dir = cache_dir

    def made(self, ops: TiledOps | PlainOps = OPS) -> bool:
        phases: list[str] = []
        index, size = open_archive(
            self.path,
            ModelConfig.from_dir(self.path),
            ops,
            self.cache_dir,
            lambda phase, done, total: phases.append(phase),
        )
        assert size > 0
        assert len(index.items()) == 15  # embedding, head, last norm, 6 tensors of each of 2 layers
        return bool(phases)


@pytest.fixture
def packing(tmp_path: Path) -> Packing:
    return Packing(make_checkpoint(tmp_path / "model"), tmp_path / "cache")


def test_made_once(packing: Packing) -> None:
    assert packing.made()
    assert not packing.made()


def test_each_layout_is_its_own(packing: Packing) -> None:
    assert packing.made()
    assert packing.made(PlainOps("float32"))
    assert packing.made(TiledOps("bfloat16", Tiles(16, 2, 16), OPS.tiles))


def test_renewed_with_the_checkpoint(packing: Packing) -> None:
    assert packing.made()
    make_checkpoint(packing.path, seed=1)
    assert packing.made()


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_repaired(packing: Packing, damage: str) -> None:
    assert packing.made()
    (file,) = (packing.cache_dir / "weights").glob("*.irpa")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-64])
    else:
        file.unlink()
    assert packing.made()
    assert not packing.made()
    assert not list((packing.cache_dir / "weights").glob("*.tmp"))
