"""The context of a worker: what was asked for, or the model's own if one sequence of it fits into memory."""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.checkpoints import make_checkpoint
from tests.workers.prefix_store.test_directory import ROWS, SIZE, chain
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import DEFAULT_CONTEXT, CheckpointError, ModelConfig, open_weights
from workers.checkpoints.weight_size import weight_bytes
from workers.errors import LoadRefused
from workers.host import memory
from workers.iree.build.recipe import Recipe
from workers.iree.kv_memory import ring_bytes
from workers.iree.kv_memory import row_bytes as kv_row_bytes
from workers.prefix_store.directory import MEMORY, StoreDirectory, unused_bytes
from workers.process.backends import options_of
from workers.process.spec import WorkerSpec
from workers.process.startup import context_choice, tier_reserve
from workers.process.startup.context_choice import ContextChoice, kv_bytes_of

MOST = 131_072


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_positions=MOST)


def spec(path: Path, **fields: Any) -> WorkerSpec:
    return scripted(**{"backend": "iree", "model_path": str(path), "dtype": "bfloat16", "context": 0} | fields)


def row_bytes(path: Path) -> int:
    config = ModelConfig.from_dir(path)
    return 2 * 2 * config.layers * config.kv_heads * config.head_dim


def choose(path: Path, backend: str = "iree", **fields: Any) -> tuple[int, str]:
    chosen = ContextChoice.of(spec(path, **fields), backend, ModelConfig.from_dir(path))
    assert chosen.model_context == MOST
    return chosen.context, chosen.bound


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (MOST, (MOST, "")),
        (MOST - 1, (122_880, "memory")),
        (122_880, (122_880, "memory")),
        (122_879, (114_688, "memory")),
        (9215, (8192, "memory")),
        (DEFAULT_CONTEXT, (DEFAULT_CONTEXT, "memory")),
        (7, (DEFAULT_CONTEXT, "memory")),
    ],
)
def test_it_is_the_models_own_if_one_sequence_fits(path: Path, rows: int, expected: tuple[int, str]) -> None:
    assert choose(path, kv_bytes=rows * row_bytes(path)) == expected
    assert choose(path, kv_bytes=(rows + 1) * row_bytes(path) - 1) == expected, "not a whole row more"


@pytest.mark.parametrize("workers", [1, 3])
def test_the_share_of_the_free_memory_is_what_the_weights_leave(
    path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weight_bytes(open_weights(path), "bfloat16", "none")
    needed = -(-workers * (weights + MOST * row_bytes(path)) * 10 // 9)
    for free, bound in ((needed + 2, ""), (needed - 10 * workers, "memory")):
        monkeypatch.setattr(context_choice, "spare_bytes", lambda free=free: free)
        assert choose(path, workers=workers)[1] == bound


def test_no_free_memory_at_all_leaves_the_least(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: 0)
    assert choose(path) == (DEFAULT_CONTEXT, "memory")


def test_what_is_asked_for_is_taken(path: Path) -> None:
    assert choose(path, context=64) == (64, "setting")
    assert choose(path, context=MOST) == (MOST, "")
    with pytest.raises(CheckpointError, match="less than the context of 131073"):
        choose(path, context=MOST + 1)


@pytest.mark.parametrize(
    ("backend", "device", "bound"),
    [("iree", "cuda", "device"), ("iree", "vulkan://0", "device"), ("iree", "local-sync", ""), ("mlx", "gpu", "")],
)
def test_a_device_that_allocates_the_cache_at_the_start_has_the_least(
    path: Path, backend: str, device: str, bound: str
) -> None:
    context, reason = choose(path, backend, device=device, kv_bytes=MOST * row_bytes(path))
    assert (context, reason) == (MOST if not bound else DEFAULT_CONTEXT, bound)


def test_a_model_of_few_positions_has_them_all(tmp_path: Path) -> None:
    small = make_checkpoint(tmp_path, max_positions=512)
    chosen = ContextChoice.of(spec(small, device="cuda"), "iree", ModelConfig.from_dir(small))
    assert (chosen.context, chosen.model_context, chosen.bound) == (512, 512, "")


def test_the_slots_fit_into_the_addresses_of_a_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_choice, "ADDRESS_BYTES", 4 * 8192 * row_bytes(path))
    assert choose(path, kv_bytes=MOST * row_bytes(path), max_batch_size=4) == (8192, "memory")


def test_a_load_takes_the_same(path: Path) -> None:
    asked = spec(path, kv_bytes=9215 * row_bytes(path))
    assert options_of(asked, "iree", ModelConfig.from_dir(path)).context == 8192


def test_the_estimate_of_another_system_is_used_where_it_reports_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    assert memory.spare_bytes() > 1 << 20
    monkeypatch.setattr(memory, "free_bytes", lambda: 77)
    assert memory.spare_bytes() == 77


def test_rows_are_counted_as_wide_as_the_cache_has_them(tmp_path: Path) -> None:
    narrow = make_checkpoint(tmp_path, max_positions=MOST, head_dim=20)
    recipe = Recipe(str(narrow), "bfloat16", True, 8, 4096, (), "", "", threads=1)
    bytes_of_all = MOST * kv_row_bytes(recipe.plan())
    assert bytes_of_all > MOST * row_bytes(narrow), "the lanes of a head are padded"
    assert choose(narrow, kv_bytes=bytes_of_all) == (MOST, "")
    assert choose(narrow, kv_bytes=bytes_of_all - 1)[1] == "memory"
    assert choose(narrow, "mlx", device="gpu", kv_bytes=MOST * row_bytes(narrow)) == (MOST, "")


@pytest.mark.parametrize("backend", ["iree", "mlx"])
def test_more_rows_fit_into_a_quantized_cache(path: Path, backend: str) -> None:
    config = ModelConfig.from_dir(path)
    quantized = 2 * config.layers * config.kv_heads * (config.head_dim + 4)
    recipe = Recipe(str(path), "bfloat16", True, 8, 4096, (), "", "", kv_dtype="int8")
    assert backend == "mlx" or quantized == kv_row_bytes(recipe.plan())
    device = {"iree": "local-task", "mlx": "gpu"}[backend]
    assert choose(path, backend, device=device, kv_bytes=MOST * quantized, kv_dtype="int8") == (MOST, "")
    assert choose(path, backend, device=device, kv_bytes=MOST * quantized - 1, kv_dtype="int8")[1] == "memory"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"chosen_context": 8192}, (8192, "memory")),
        ({"chosen_context": MOST}, (MOST, "")),
        ({"chosen_context": MOST + 1}, (MOST, "")),
        ({"chosen_context": 8192, "context": 64}, (64, "setting")),
        ({"chosen_context": DEFAULT_CONTEXT, "device": "cuda"}, (DEFAULT_CONTEXT, "device")),
    ],
)
def test_what_was_chosen_when_the_server_started_does_not_depend_on_the_memory_that_is_free(
    path: Path, fields: dict[str, Any], expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: 0)
    assert choose(path, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"kv_bytes": 5000}, 5000),
        ({"kv_bytes": 5000, "kv_most": 9000}, 5000),
        ({"kv_most": 9000}, 9000),
        ({"kv_most": 20_000}, 16_000),
        ({"kv_most": 10}, 3000),
    ],
)
def test_a_part_of_a_budget_bounds_the_cache_as_memory_does_and_holds_one_context(
    path: Path, fields: dict[str, int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rows."""
    row = row_bytes(path)
    weights = weight_bytes(open_weights(path), "bfloat16", "none")
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: (weights + 16_000 * row) * 10 // 9 + 2)
    asked = spec(path, **{name: value * row for name, value in fields.items()})
    assert kv_bytes_of(asked, "iree", ModelConfig.from_dir(path), 3000) // row == expected


def test_a_part_of_a_budget_bounds_the_context_of_another_checkpoint(path: Path) -> None:
    assert choose(path, kv_most=8192 * row_bytes(path)) == (8192, "memory")


def test_what_a_predecessor_leaves_counts_as_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weight_bytes(open_weights(path), "bfloat16", "none")
    left = (weights + MOST * row_bytes(path)) * 10 // 9 + 2
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: 0)
    successors: list[int] = []

    def leaving_bytes(predecessor: int, successor: int) -> int:
        successors.append(successor)
        return left if predecessor == 77 else 0

    monkeypatch.setattr(context_choice, "leaving_bytes", leaving_bytes)
    assert choose(path) == (DEFAULT_CONTEXT, "memory")
    assert choose(path, predecessor=77) == (MOST, "")
    worker = spec(path, kv_most=left, predecessor=77)
    assert kv_bytes_of(worker, "iree", ModelConfig.from_dir(path), 3000) // row_bytes(path) == MOST
    assert successors == [os.getpid(), os.getpid(), os.getppid()], "the server chooses the context"


def test_what_the_prefix_tier_may_still_take_is_left_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a directory in memory; what is in it is not free anyway."""
    free, most = 1 << 33, 1 << 30
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: free)
    monkeypatch.setattr(tier_reserve, "default_directory", lambda: MEMORY / "none")
    one = spec(path, kv_most=1 << 40)
    without = kv_bytes_of(one, "iree", ModelConfig.from_dir(path), 64)
    for fields, less in (({}, most), ({"prefix_cache_dir": "/named"}, 0)):
        tiered = replace(one, prefix_cache_bytes=most, **fields)
        left = without - kv_bytes_of(tiered, "iree", ModelConfig.from_dir(path), 64)
        assert abs(left - memory.SHARE * less) <= 1


def test_the_bytes_of_a_tier_that_are_taken_are_not_left_free_again(tmp_path: Path) -> None:
    assert unused_bytes(tmp_path / "none", 10 * SIZE) == 10 * SIZE
    directory = StoreDirectory(tmp_path / "store", 10 * SIZE, temporary=True)
    assert unused_bytes(directory.path, 10 * SIZE) == 10 * SIZE
    directory.write(chain(1)[0], ROWS)
    assert unused_bytes(directory.path, 10 * SIZE) == 9 * SIZE
    assert unused_bytes(directory.path, SIZE - 1) == 0
    directory.close()


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of six layers has no window."""
    fields = {"sliding_window": 64, "sliding_window_pattern": 6}
    path = tmp_path_factory.mktemp("windowed")
    return make_checkpoint(path, "gemma3_text", layers=6, max_positions=MOST, fields=fields)


def test_rings_leave_room_for_a_longer_context(windowed: Path) -> None:
    kv_bytes = 8192 * row_bytes(windowed)
    assert choose(windowed, kv_bytes=kv_bytes) == (8192, "memory")
    assert choose(windowed, kv_bytes=kv_bytes, window_cache="ring") == (6 * 8192, "memory")


def test_rings_are_counted_as_the_plan_has_them(windowed: Path) -> None:
    made, config = spec(windowed, context=8192, window_cache="ring"), ModelConfig.from_dir(windowed)
    recipe = Recipe(str(windowed), "auto", True, 8, 8192, (), "", "", window_cache="ring")
    wide = replace(made, dtype="float32", max_batch_size=8)
    plan = recipe.plan()
    assert context_choice.ring_bytes(wide, "iree", config) == 8 * ring_bytes(plan) > 0
    assert context_choice.row_bytes(wide, "iree", config) == kv_row_bytes(plan)
    assert context_choice.sequence_bytes(wide, "iree", config, 8192) == 8192 * kv_row_bytes(plan) + ring_bytes(plan)


@pytest.mark.parametrize(
    ("backend", "device", "where"), [("other", "", "with the backends iree and mlx"), ("iree", "cuda", "on a CPU")]
)
def test_rings_are_refused_where_no_kernel_reads_them(windowed: Path, backend: str, device: str, where: str) -> None:
    with pytest.raises(LoadRefused, match=f"window_cache: ring is possible {where} only"):
        options_of(spec(windowed, device=device, window_cache="ring"), backend, ModelConfig.from_dir(windowed))
