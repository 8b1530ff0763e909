"""The memory of a model before it is loaded, beside what a worker reports."""

from pathlib import Path
from typing import Any

import pytest

from models import builtin_path
from tests.checkpoints import make_checkpoint
from workers.checkpoints.memory_estimate import estimate_bytes
from workers.process.loading import load, memory_bytes
from workers.process.spec import WorkerSpec


def estimate(path: Path, **options: Any) -> int:
    wanted: dict[str, Any] = {"dtype": "auto", "quantize": "none", "slots": 2, "context": 64, "kv_bytes": 0} | options
    return estimate_bytes(path, **wanted)


def test_the_cache_grows_with_slots_and_context_up_to_its_bound(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "m")
    weights = estimate(path, slots=0)
    row = (estimate(path) - weights) // (2 * 64)
    assert row > 0
    assert estimate(path, slots=4) == weights + 4 * 64 * row
    assert estimate(path, context=32) == weights + 2 * 32 * row
    assert estimate(path, kv_bytes=7) == weights + 7
    assert estimate(path, kv_bytes=1 << 40) == estimate(path)


def test_quantized_weights_take_less() -> None:
    sizes = [estimate(builtin_path(), quantize=kind, slots=0) for kind in ("none", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    assert estimate(builtin_path(), dtype="float32", slots=0) == 2 * estimate(builtin_path(), dtype="bfloat16", slots=0)


def test_a_worker_reports_about_as_much() -> None:
    spec = WorkerSpec("w0", "tiny", str(builtin_path()), backend="iree", max_batch_size=4, context=256)
    loaded = load(spec, lambda *_: None)
    try:
        reported = memory_bytes(loaded.engine.capabilities, loaded.engine.kv_capacity)
    finally:
        if loaded.grammars is not None:
            loaded.grammars.close()
        loaded.engine.close()
    assert reported == pytest.approx(estimate(builtin_path(), slots=4, context=256), rel=0.25)
