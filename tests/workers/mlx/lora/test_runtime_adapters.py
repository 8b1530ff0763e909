"""Adapters that are put in place while a runner serves, on MLX."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.lora.lora_files import ATTENTION, make_lora
from tests.workers.mlx.conftest import Load
from tests.workers.mlx.lora.test_lora import TOKENS
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk


@pytest.mark.parametrize("bits", [None, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_an_adapter_has_the_same_logits_at_every_place_and_beside_others(
    tmp_path: Path, load: Load, bits: int | None
) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2, quantized_bits=bits)
    one = make_lora(tmp_path / "one", path, seed=1)
    two = make_lora(tmp_path / "two", path, targets=ATTENTION[:3], rank=9, seed=2)
    runner = load(path, lora_modules=(("one", one),), runtime_loras=2, max_lora_rank=9)
    slots = runner.adapter_slots
    assert slots is not None

    def logits(adapter: int) -> bytes:
        runner.reset(0)
        return runner.logits(Chunk(0, TOKENS, 0, 0, adapter=adapter)).tobytes()

    plain, static = logits(0), logits(1)
    assert plain != static
    assert logits(2) == plain, "nothing is there yet"
    slots.read(one)(3)
    slots.read(two)(2)
    other = logits(2)
    assert other not in (static, plain)
    assert [logits(number) for number in (0, 1, 3)] == [plain, static, static]
    slots.read(two)(3)  # in place of the first one, whose columns are all written
    assert [logits(number) for number in (3, 1)] == [other, static]
    assert load(path).logits(Chunk(0, TOKENS, 0, 0)).tobytes() == plain
    with pytest.raises(CheckpointError, match="10 is more than max_lora_rank, 9"):
        slots.read(make_lora(tmp_path / "large", path, rank=10))
