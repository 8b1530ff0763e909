"""Which models get kernels of our own, which plain graphs, and which more than one thread."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoint import ModelConfig, open_weights
from workers.iree import recipe
from workers.iree.plain import PlainOps
from workers.iree.recipe import choose_device, choose_ops, parameters
from workers.iree.tiled import TiledOps

CORES = 6


@pytest.mark.parametrize(
    ("share", "kind"), [(1.0, TiledOps), (0.75, TiledOps), (0.625, PlainOps)], ids=["all", "12 lanes", "10 lanes"]
)
def test_what_is_turned_must_be_pairs_of_pairs(tmp_path: Path, share: float, kind: type) -> None:
    path = make_checkpoint(tmp_path / "model", "phi3", tied=False, fields={"partial_rotary_factor": share})
    config = ModelConfig.from_dir(path)
    assert isinstance(choose_ops(config, "bfloat16", local=True), kind)
    assert isinstance(choose_ops(config, "bfloat16", local=False), PlainOps)


@pytest.mark.parametrize(
    ("device", "threads", "spare", "chosen"),
    [
        ("", 0, 0, ("local-sync", 1)),
        ("", 0, -1, ("", CORES)),
        ("", 1, -1, ("local-sync", 1)),
        ("", 2, 0, ("", 2)),
        ("local-task", 0, 0, ("local-task", CORES)),
        ("local-task", 1, 0, ("local-task", 1)),
        ("local-sync", 0, -1, ("local-sync", 1)),
        ("local-sync://0", 3, -1, ("local-sync://0", 1)),
        ("cuda", 0, 0, ("cuda", CORES)),
    ],
)
def test_a_small_model_is_computed_by_the_thread_that_asks(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    threads: int,
    spare: int,
    chosen: tuple[str, int],
) -> None:
    config = ModelConfig.from_dir(checkpoint)
    monkeypatch.setattr(recipe, "FEW_PARAMETERS", parameters(config) + spare)
    monkeypatch.setattr(recipe, "usable_cores", lambda: CORES)
    assert choose_device(device, threads, config) == chosen


def test_the_parameters_of_a_model(tmp_path: Path) -> None:
    """A tied matrix is read twice: as embedding and as head."""
    path = make_checkpoint(tmp_path / "model", "llama", tied=True)
    config = ModelConfig.from_dir(path)
    stored = sum(array.size for array in open_weights(path).values())
    assert parameters(config) == stored + config.vocab_size * config.hidden_size
