"""Adapters that are put in place while a runner serves, on IREE."""

from pathlib import Path

import pytest

from tests.workers.checkpoints.lora.lora_files import ATTENTION, make_lora
from tests.workers.iree.conftest import Load
from tests.workers.iree.lora.test_lora import RUNTIME, TOKENS, rows_after
from workers.checkpoints.checkpoint import CheckpointError
from workers.engine.runner import Chunk


def test_an_adapter_has_the_same_rows_at_every_place_and_beside_others(
    load: Load, checkpoint: Path, tmp_path: Path
) -> None:
    one = make_lora(tmp_path / "one", checkpoint, seed=1)
    two = make_lora(tmp_path / "two", checkpoint, targets=ATTENTION[:3], rank=9, seed=2)
    runner = load(lora_modules=(("one", one),), **RUNTIME)
    slots = runner.adapter_slots
    assert slots is not None
    assert (runner.capabilities.adapters, runner.capabilities.adapter_places) == (("one",), 2)
    plain, static = rows_after(runner, [0, 1])
    assert plain != static
    assert rows_after(runner, [2])[0] == plain, "nothing is there yet"
    slots.read(one)(3)
    assert rows_after(runner, [1, 3, 0]) == [static, static, plain]
    slots.read(two)(2)
    (other,) = rows_after(runner, [2])
    assert other not in (static, plain)
    assert rows_after(runner, [0, 1, 2, 3]) == [plain, static, other, static]
    slots.read(two)(3)  # in place of the first one, whose columns are all written
    assert rows_after(runner, [3, 1]) == [other, static]
    with pytest.raises(ValueError, match="adapter: 4, of 3"):
        runner.logits(Chunk(0, TOKENS, 0, 0, adapter=4))
    with pytest.raises(CheckpointError, match="10 is more than max_lora_rank, 9"):
        slots.read(make_lora(tmp_path / "large", checkpoint, rank=10))
    runner.close()
