"""Adapters that are not what they seem: each is refused by the file and the field or tensor."""

import shutil
import tracemalloc
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.lora.hostile_files import HOSTILE
from tests.workers.checkpoints.lora.lora_files import make_lora
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.checkpoints.lora.adapted_matrices import adapter_stacks
from workers.checkpoints.lora.adapter_weights import AdapterWeights

MOST_BYTES = 16 << 20
"""Memory that reading a small adapter may take, whatever its files say."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Path]:
    root = tmp_path_factory.mktemp("hostile")
    path = make_checkpoint(root / "model", layers=1)
    return ModelConfig.from_dir(path), make_lora(root / "lora", path)


def read(config: ModelConfig, directory: Path) -> None:
    adapter = AdapterWeights("one", directory, 64)
    adapter_stacks(config, [adapter])
    for module in adapter.pairs:
        adapter.pair(module)


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_it_is_refused_by_name(sound: tuple[ModelConfig, Path], tmp_path: Path, case: str) -> None:
    config, adapter = sound
    shutil.copytree(adapter, tmp_path / "lora")
    words = HOSTILE[case](tmp_path / "lora")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as refused:
            read(config, tmp_path / "lora")
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert words in str(refused.value)
    assert str(tmp_path / "lora") in str(refused.value)


def test_the_one_that_they_are_made_of_is_read(sound: tuple[ModelConfig, Path]) -> None:
    read(*sound)
