"""The memory of a worker before it is loaded, beside what the worker reports."""

from pathlib import Path
from typing import Any

import pytest

from models import builtin_path
from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.lora.lora_files import make_lora
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import DEFAULT_CONTEXT, ModelConfig
from workers.checkpoints.lora.adapter_places import AdapterPlaces
from workers.iree.model.state_versions import state_versions
from workers.process.loading import load, memory_bytes
from workers.process.spec import WorkerSpec
from workers.process.startup import context_choice
from workers.process.startup.footprint import Footprint

MOST = 131_072


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_positions=MOST)


def footprint(path: Path, **fields: Any) -> Footprint:
    own: dict[str, Any] = {"backend": "iree", "model_path": str(path), "dtype": "bfloat16", "context": 0}
    return Footprint.of(scripted(**own | {"max_batch_size": 4} | fields))


def contexts(found: Footprint) -> tuple[int, int, int]:
    return found.least, found.most, found.rows


def test_an_open_context_has_the_cache_of_the_default_one_at_least(path: Path) -> None:
    assert contexts(footprint(path)) == (DEFAULT_CONTEXT, MOST, 4 * DEFAULT_CONTEXT)
    assert contexts(footprint(path, max_batch_size=1)) == (DEFAULT_CONTEXT, MOST, DEFAULT_CONTEXT)


def test_what_is_set_is_not_open(path: Path) -> None:
    assert contexts(footprint(path, context=64)) == (64, 64, 4 * 64)
    row = footprint(path).row_bytes
    assert contexts(footprint(path, kv_bytes=9216 * row)) == (9216, 9216, 9216)
    assert contexts(footprint(path, context=64, kv_bytes=100 * row)) == (64, 64, 100)
    assert contexts(footprint(path, context=64, kv_bytes=1 << 40)) == (64, 64, 4 * 64)
    assert contexts(footprint(path, device="cuda")) == (DEFAULT_CONTEXT, DEFAULT_CONTEXT, 4 * DEFAULT_CONTEXT)


def test_the_slots_fit_into_the_addresses_of_a_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_choice, "ADDRESS_BYTES", 4 * 8192 * footprint(path).row_bytes)
    assert footprint(path).most == 8192


def test_a_scripted_worker_takes_none(path: Path) -> None:
    assert footprint(path, backend="scripted", context=77) == Footprint(0, 0, 0, 77, 77)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_worker_reports_no_more_and_about_as_much(quantize: Any) -> None:
    spec = WorkerSpec(
        "w0", "tiny", str(builtin_path()), backend="iree", quantize=quantize, max_batch_size=4, kv_most=1 << 24
    )
    expected = Footprint.of(spec)
    loaded = load(spec, lambda *_: None)
    try:
        reported = memory_bytes(loaded.engine.capabilities, loaded.engine.kv_capacity)
    finally:
        if loaded.grammars is not None:
            loaded.grammars.close()
        loaded.engine.close()
    rows = loaded.engine.kv_capacity
    assert rows == (1 << 24) // expected.row_bytes, "the most that it may take"
    assert rows >= loaded.context
    estimated = expected.weights + rows * expected.row_bytes
    assert reported <= estimated
    assert reported == pytest.approx(estimated, rel=0.25)


def test_adapters_and_their_places_are_counted(path: Path, tmp_path: Path) -> None:
    """Places in full, and adapters that stay by their ranks: both in whole vectors."""
    plain, config = footprint(path).weights, ModelConfig.from_dir(path)
    one = make_lora(tmp_path / "one", path, rank=4)
    fixed = footprint(path, lora_modules={"one": str(one)}).weights - plain
    places = [footprint(path, runtime_lora=True, max_loras=count, max_lora_rank=40).weights - plain for count in (1, 3)]
    assert places == [AdapterPlaces(config, count, 40).nbytes(4) for count in (1, 3)]
    assert 0 < fixed < places[0] == places[1] // 3
    both = footprint(path, lora_modules={"one": str(one)}, runtime_lora=True, max_loras=3, max_lora_rank=40)
    assert both.weights - plain == places[1]


def test_recurrent_states_are_fixed(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "qwen3_5_text")
    found = footprint(path)
    convolution, matrices = 3 * (2 * 2 * 32 + 4 * 16), 4 * 32 * 16
    assert found.states == 4 * state_versions(ModelConfig.from_dir(path), 4) * 4 * (convolution + matrices)
    assert found.fixed == found.weights + found.states
    assert found.row_bytes == 2 * 2 * 16 * 2, "one of the two layers attends"
