"""The MLX runner keeps the promises of `workers.engine.runner.Runner`."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest
from msgspec import structs

from protocol.request import Sampling
from tests.checkpoints import LLAMA3_SCALING, make_checkpoint, write_safetensors
from tests.failure_gate import run_failure_gate
from tests.gate import alone, run_gate
from tests.prefix_gate import run_prefix_gate
from tests.reference.layers.gemma4_layers import ALL as GEMMA4_ALL
from tests.workers.hidden_gate import run_hidden_gate
from tests.workers.mlx.conftest import Load, load_runner
from tests.workers.rows_gate import run_rows_gate
from tests.workers.tier_gate import run_tier_gate
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError, Runner
from workers.errors import LoadRefused
from workers.mlx.kv import GROWTH
from workers.mlx.row_groups import group_segments
from workers.mlx.runner import MlxRunner
from workers.sampling.sample_spec import SampleSpec

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama3-rope-sharded-untied": {"rope_scaling": LLAMA3_SCALING, "sharded": True, "tied": False},
    "mistral": {"family": "mistral", "tied": False, "kv_heads": 4},
    "qwen2": {"family": "qwen2", "kv_heads": 1},
    "qwen3": {"family": "qwen3"},
    "gemma": {"family": "gemma"},
    "granite": {"family": "granite", "dtype": "bfloat16"},
    "gemma2": {"family": "gemma2", "fields": {"sliding_window": 9}},
    "gemma3": {"family": "gemma3_text", "fields": {"sliding_window": 9}, "dtype": "bfloat16"},
    "gemma4": {"family": "gemma4_text", "layers": 4, "fields": GEMMA4_ALL | {"sliding_window": 9}, "dtype": "bfloat16"},
    "qwen3-moe": {"family": "qwen3_moe", "tied": False},
    "mixtral": {"family": "mixtral", "tied": False},
    "glm4-moe": {"family": "glm4_moe", "tied": False, "dtype": "bfloat16"},
    "gpt-oss": {"family": "gpt_oss", "tied": False, "fields": {"sliding_window": 9}},
    "minicpm3": {"family": "minicpm3", "dtype": "bfloat16"},
    "phi": {"family": "phi", "tied": False, "dtype": "bfloat16"},
    "stablelm": {"family": "stablelm", "tied": False},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "4-bit": {"quantized_bits": 4, "tied": False},
    "8-bit": {"quantized_bits": 8, "group_size": 64, "dtype": "bfloat16"},
}
GREEDY = SampleSpec(Sampling(), 0)


def tokens_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(map(int, np.random.default_rng(seed).integers(3, 500, length)))


def slot_rows(runner: MlxRunner, slot: int, count: int) -> Any:
    """The first rows of keys and values in every layer, [layers, keys and values, kv_heads, rows, head_dim]."""
    capacity, place = runner._slots.kv.place(slot)
    return np.array([[part[place, :, :count] for part in layer] for layer in runner._slots.kv.slab(capacity).buffers])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def test_hidden_states_are_exact(path: Path, load: Load) -> None:
    run_hidden_gate(load(path), path)


def test_a_late_mask_holds_for_the_token_after_a_reported_prompt(path: Path) -> None:
    runner = load_runner(path, slots=1, context=32)
    chunk = Chunk(0, tokens_of(8), 0, 0)
    (greedy,) = runner.prefill([chunk], [GREEDY])
    runner.reset(0)
    only = np.zeros(-(-runner.capabilities.vocab_size // 32), np.uint32)
    only[0] = 2 if greedy != 1 else 4
    token, _ = runner.prefill_reported(chunk, structs.replace(GREEDY, late_mask=lambda: only), chunk.tokens[1:])
    assert token == (1 if greedy != 1 else 2)
    runner.close()


def test_gate(path: Path) -> None:
    report = run_gate(lambda: load_runner(path, slots=8, context=160), longest=140)
    assert report.requests >= 32
    assert report.most_active == 8
    assert report.shared > 0
    assert min(report.grammars, report.complete) > 0
    assert min(report.cancelled, report.resumed, report.stopped, report.masked, report.reported) > 0
    assert report.prompts_reported > 3


@pytest.mark.exhaustive
def test_gate_while_requests_are_preempted(path: Path) -> None:
    report = run_gate(lambda: load_runner(path, slots=6, context=160), longest=60, max_tokens=40, preempts=True)
    assert report.preemptions > 10
    assert min(report.grammars, report.reported, report.masked) > 0


@pytest.mark.exhaustive
def test_gate_with_drafts(path: Path) -> None:
    report = run_gate(lambda: load_runner(path, slots=6, context=96), longest=40, speculates=True)
    assert report.drafted > 50
    assert report.drafted * 0.3 < report.accepted < report.drafted
    assert min(report.grammars, report.reported, report.masked) > 0


@pytest.mark.parametrize("same", [True, False], ids=["the model itself", "another"])
def test_gate_with_a_draft_model(path: Path, tmp_path: Path, same: bool) -> None:
    draft = path if same else make_checkpoint(tmp_path / "draft", layers=1, seed=5)
    report = run_gate(
        lambda: load_runner(path, slots=6, context=64),
        make_draft=lambda: load_runner(draft, slots=6, context=64),
        requests=32,
        longest=24,
        max_tokens=14,
    )
    assert report.drafted > 50
    assert min(report.grammars, report.reported, report.masked) > 0
    # The same model drafts what is sampled, as its noise is the same.
    assert report.accepted == report.drafted if same else 0 < report.accepted < report.drafted


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_small_gate(tmp_path: Path, variant: dict[str, Any]) -> None:
    path = make_checkpoint(tmp_path, **variant)
    report = run_gate(lambda: load_runner(path, context=48), requests=12, max_tokens=8)
    assert report.most_active == 4
    assert min(report.cancelled, report.resumed, report.full) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_from_others_are_as_good_as_computed_ones(path: Path, dtype: str) -> None:
    report = run_prefix_gate(lambda: load_runner(path, dtype=dtype))
    assert report.hits > report.requests // 2
    assert min(report.in_place, report.copies) > 0


@pytest.mark.parametrize("kind", ["raise", "nan"])
def test_a_failed_request_costs_no_other_its_cached_rows(path: Path, kind: Any) -> None:
    run_failure_gate(lambda: load_runner(path), kind)


def test_a_call_that_fails_halfway_leaves_other_slots_as_they_are(
    path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first layer has written rows, and the second one raises."""
    runner, tokens = load(path), tokens_of(60)
    expected = runner.logits(Chunk(0, tokens, 0, 0))
    runner.reset(0)
    for slot in (0, 1):
        runner.prefill([Chunk(slot, tokens[:50], 0, 0)], [None])
    held = slot_rows(runner, 0, 50)
    with monkeypatch.context() as patched:
        patched.setattr(
            type(runner._forward.model.layers[1].mlp), "__call__", Mock(side_effect=[mx.zeros(64), RuntimeError])
        )
        with pytest.raises(RuntimeError):
            runner.prefill([Chunk(1, tokens[50:], 50, 50), Chunk(2, tokens[:9], 0, 0)], [GREEDY, None])
    np.testing.assert_array_equal(slot_rows(runner, 0, 50), held)
    for slot in (1, 2):
        runner.reset(slot)
    runner.copy_prefix(0, 1, 50)
    for slot in (0, 1):
        np.testing.assert_array_equal(runner.logits(Chunk(slot, tokens[50:], 50, 50)), expected[50:])


def test_rows_that_a_failed_call_lost_are_refused(path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that cannot be evaluated has the rows of all slots of its capacity."""
    runner, tokens = load(path, context=512), tokens_of(300)
    expected = runner.logits(Chunk(2, tokens, 0, 0))
    for slot in (0, 1):
        runner.prefill([Chunk(slot, tokens[:50], 0, 0)], [None])
    with monkeypatch.context() as patched:
        patched.setattr(mx, "eval", Mock(side_effect=[MemoryError, None, MemoryError]))
        with pytest.raises(MemoryError):
            runner.prefill([Chunk(1, tokens[50:60], 50, 50)], [None])
    for slot in (0, 1):
        with pytest.raises(ValueError, match="gap after 0 rows"):
            runner.prefill([Chunk(slot, tokens[50:60], 50, 50)], [None])
        runner.reset(slot)
    np.testing.assert_array_equal(runner.logits(Chunk(2, tokens[299:], 299, 299)), expected[299:])
    np.testing.assert_array_equal(runner.logits(Chunk(0, tokens, 0, 0)), expected)


def test_rows_of_one_length_only_share_a_call_under_macos(
    path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    runner, expected = load(path), [load(path, slots=1), load(path, slots=1), load(path, slots=1)]
    starts = (20, 20, 21)
    for slot, start in enumerate(starts):
        runner.prefill([Chunk(slot, tokens_of(start, slot), 0, 0)], [None])
        expected[slot].prefill([Chunk(0, tokens_of(start, slot), 0, 0)], [None])
    groups = Mock(wraps=group_segments)
    monkeypatch.setattr("workers.mlx.execution.forward.group_segments", groups)
    tokens = runner.decode([DecodeRow(slot, 5, start, start, GREEDY) for slot, start in enumerate(starts)])
    segments, padding = groups.call_args.args
    assert group_segments(segments, padding) == [[0, 1], [2]]
    alone = [
        one.decode([DecodeRow(0, 5, start, start, GREEDY)])[0] for one, start in zip(expected, starts, strict=True)
    ]
    assert tokens == alone


def test_a_copied_slot_owns_its_rows_and_nothing_behind_them(path: Path, load: Load) -> None:
    runner = load(path)
    tokens = tokens_of(60)
    runner.prefill([Chunk(0, tokens, 0, 0)], [None])
    runner.copy_prefix(0, 2, 37)
    runner.reset(0)
    expected = runner.logits(Chunk(1, tokens, 0, 0))
    rows = slot_rows(runner, 2, GROWTH)
    assert rows[..., :37, :].any(axis=-1).all()
    assert not rows[..., 37:, :].any()
    np.testing.assert_array_equal(runner.logits(Chunk(2, tokens[37:], 37, 37)), expected[37:])
    with pytest.raises(ValueError, match="length: 61 rows of a slot with 60"):
        runner.copy_prefix(2, 3, 61)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_logits_do_not_depend_on_the_chunks_of_a_prompt(tmp_path: Path, load: Load, variant: dict[str, Any]) -> None:
    runner = load(make_checkpoint(tmp_path, **variant))
    tokens = tokens_of(100)
    whole = runner.logits(Chunk(0, tokens, 0, 0))
    assert whole.shape == (100, 512)
    assert whole.dtype == np.float32
    chunked = [runner.logits(Chunk(1, tokens[a : a + 37], a, a)) for a in range(0, 100, 37)]
    single = [runner.logits(Chunk(2, (token,), index, index)) for index, token in enumerate(tokens)]
    np.testing.assert_array_equal(np.concatenate(chunked), whole)
    np.testing.assert_array_equal(np.concatenate(single), whole)


def test_prefill_samples_from_the_last_row(path: Path, load: Load) -> None:
    runner = load(path)
    tokens = tokens_of(40)
    logits = runner.logits(Chunk(0, tokens, 0, 0))
    assert runner.prefill([Chunk(1, tokens[:30], 0, 0)], [None]) == [None]
    assert runner.prefill([Chunk(1, tokens[30:], 30, 30)], [GREEDY]) == [int(logits[-1].argmax())]


def test_prompts_that_share_a_call_get_what_they_get_alone(path: Path, load: Load) -> None:
    runner = load(path)
    prompts = [tokens_of(length, length) for length in (5, 17, 1)]
    expected = []
    for prompt in prompts:
        runner.reset(3)
        expected.append(runner.logits(Chunk(3, prompt, 0, 0))[-1])
    chunks = [Chunk(slot, prompt, 0, 0) for slot, prompt in enumerate(prompts)]
    specs = [SampleSpec(Sampling(logprobs=1), len(prompt)) for prompt in prompts]
    assert runner.prefill(chunks, [specs[0], None, specs[2]]) == [
        int(expected[0].argmax()),
        None,
        int(expected[2].argmax()),
    ]
    assert [each.tokens[0] for each in runner.logprobs([0, 1])] == [int(expected[place].argmax()) for place in (0, 2)]
    with pytest.raises(ValueError, match="specs: 1 for 3 chunks"):
        runner.prefill(chunks, [None])


def test_decode_returns_tokens_in_row_order(path: Path, load: Load) -> None:
    runner = load(path)
    tokens = [tokens_of(12, slot) for slot in range(3)]
    for slot in range(3):
        runner.prefill([Chunk(slot, tokens[slot][:-1], 0, 0)], [None])
    rows = [DecodeRow(slot, tokens[slot][-1], 11, 11, GREEDY) for slot in (2, 0, 1)]
    sampled = runner.decode(rows)
    assert sampled == [int(runner.logits(Chunk(3, tokens[slot], 0, 0))[-1].argmax()) for slot in (2, 0, 1)]
    assert runner.decode([]) == []


def test_greedy_and_random_rows_mix(path: Path, load: Load) -> None:
    runner = load(path)
    prompt = tokens_of(9)
    specs = [SampleSpec(Sampling(temperature=heat, seed=5), 9) for heat in (0.0, 1.5, 0.0, 1.5)]
    first = []
    for slot, spec in enumerate(specs):
        first += runner.prefill([Chunk(slot, prompt, 0, 0)], [spec])
        runner.reset(slot)
        runner.prefill([Chunk(slot, prompt[:-1], 0, 0)], [None])
    sampled = runner.decode([DecodeRow(slot, prompt[-1], 8, 8, spec) for slot, spec in enumerate(specs)])
    assert sampled == first
    assert sampled[0] == sampled[2] != sampled[1] == sampled[3]


def test_position_is_not_a_cache_row(path: Path, load: Load) -> None:
    """RoPE is relative: with all positions shifted equally, the logits stay; with one shifted, they do not."""
    runner = load(path)
    tokens = tokens_of(20)
    plain = runner.logits(Chunk(0, tokens, 0, 0))
    np.testing.assert_allclose(runner.logits(Chunk(1, tokens, 0, 50)), plain, atol=1e-4)
    runner.prefill([Chunk(2, tokens[:10], 0, 0)], [None])
    moved = runner.logits(Chunk(2, tokens[10:], 10, 60))
    assert np.abs(moved - plain[10:]).max() > 1e-2
    runner.prefill([Chunk(3, tokens[:10], 0, 0)], [None])
    row = DecodeRow(3, tokens[10], 10, 60, GREEDY)
    assert runner.decode([row]) == [int(moved[0].argmax())]


def test_reset_hides_what_a_slot_held(path: Path, load: Load) -> None:
    runner = load(path)
    fresh = runner.logits(Chunk(1, tokens_of(5), 0, 0))
    runner.prefill([Chunk(0, tokens_of(250, 1), 0, 0)], [None])
    runner.reset(0)
    with pytest.raises(ValueError, match="start"):
        runner.prefill([Chunk(0, (5,), 250, 250)], [None])
    np.testing.assert_array_equal(runner.logits(Chunk(0, tokens_of(5), 0, 0)), fresh)


def test_a_step_writes_in_place(path: Path, load: Load) -> None:
    """A decode step takes no memory that grows with what the slot holds."""
    runner = load(path, context=2048)
    for start in range(0, 2000, 250):
        runner.prefill([Chunk(0, tokens_of(250), start, start)], [None])
    runner.decode([DecodeRow(0, 5, 2000, 2000, GREEDY)])
    one_buffer = runner.memory()["kv"] // 4
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    runner.decode([DecodeRow(0, 5, 2001, 2001, GREEDY)])
    assert mx.get_peak_memory() - before < one_buffer


def test_a_step_of_several_slots_writes_in_place(path: Path, load: Load) -> None:
    runner = load(path, context=512)
    for slot in range(4):
        runner.prefill([Chunk(slot, tokens_of(280 + slot), 0, 0)], [None])
    runner.decode([DecodeRow(slot, 5, 280 + slot, 280 + slot, GREEDY) for slot in range(4)])
    one_buffer = runner.memory()["kv"] // 4
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    runner.decode([DecodeRow(slot, 5, 281 + slot, 281 + slot, GREEDY) for slot in range(4)])
    assert mx.get_peak_memory() - before < one_buffer


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_several_lengths_get_the_logits_that_they_get_alone(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, family: str, dtype: str
) -> None:
    """In any order, padded to the longest or grouped by length. Under macOS nothing is padded."""
    path = make_checkpoint(tmp_path, family, fields={"sliding_window": 50} if family == "gemma2" else {})
    runner, starts = load(path, slots=8, dtype=dtype), (3, 120, 1, 64, 47, 255, 48)
    for slot, start in enumerate(starts):
        runner.prefill([Chunk(slot, tokens_of(start, slot), 0, 0)], [None])
    rows = [Chunk(slot, (9 + slot,), start, start) for slot, start in enumerate(starts)]
    alone = [runner.logits(row)[0] for row in rows]
    for padding in (0,) if sys.platform == "darwin" else (GROWTH, 16, 0):
        monkeypatch.setattr(runner._forward, "_padding", padding)
        for order in ((0, 1, 2, 3, 4, 5, 6), (5, 0, 3, 2), (6, 4, 1)):
            with runner._owned():
                together = np.array(runner._forward.logits(runner._forward.rows([rows[slot] for slot in order])))
            np.testing.assert_array_equal(together, [alone[slot] for slot in order])


def test_rows_written_again_replace_the_old(path: Path, load: Load) -> None:
    runner = load(path)
    runner.prefill([Chunk(0, tokens_of(60, 1), 0, 0)], [None])
    again = runner.logits(Chunk(0, tokens_of(20), 0, 0))
    np.testing.assert_array_equal(again, runner.logits(Chunk(1, tokens_of(20), 0, 0)))
    with pytest.raises(ValueError, match="gap after 20 rows"):
        runner.prefill([Chunk(0, (5,), 21, 21)], [None])


def test_a_slot_fills_to_its_last_row_and_no_further(path: Path, load: Load) -> None:
    runner = load(path)
    runner.prefill([Chunk(0, tokens_of(255), 0, 0)], [None])
    assert len(runner.decode([DecodeRow(0, 7, 255, 255, GREEDY)])) == 1
    with pytest.raises(ValueError, match="a slot has 256 rows"):
        runner.decode([DecodeRow(0, 7, 256, 256, GREEDY)])


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk(4, (5,), 0, 0), "slot: 4"),
        (Chunk(-1, (5,), 0, 0), "slot: -1"),
        (Chunk(0, (), 0, 0), "tokens"),
        (Chunk(0, (512,), 0, 0), "tokens"),
        (Chunk(0, (-1,), 0, 0), "tokens"),
        (Chunk(0, (5,), -1, 0), "start: -1"),
        (Chunk(0, (5,), 1, 1), "gap"),
        (Chunk(0, (5,), 0, -1), "position"),
    ],
)
def test_rows_outside_of_a_slot_are_refused(path: Path, load: Load, chunk: Chunk, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(path).prefill([chunk], [None])


def test_more_rows_than_a_step_takes_are_refused(path: Path, load: Load) -> None:
    runner = load(path, slots=1, context=64)
    runner.prefill([Chunk(0, (1,), 0, 0)], [None])
    rows = [DecodeRow(0, 1, at, at, SampleSpec(Sampling(), at)) for at in range(1, 2 + runner.capabilities.decode_rows)]
    with pytest.raises(ValueError, match=f"rows: {len(rows)} for 1 slots, a step takes"):
        runner.decode(rows)


def test_two_rows_of_one_slot_with_another_between_them_are_refused(path: Path, load: Load) -> None:
    rows = [DecodeRow(0, 5, 0, 0, GREEDY), DecodeRow(1, 5, 0, 0, GREEDY), DecodeRow(0, 6, 1, 1, GREEDY)]
    with pytest.raises(ValueError, match="one row a slot"):
        load(path).decode(rows)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_what_was_asked_for(path: Path, load: Load, dtype: str) -> None:
    runner = load(path, dtype=dtype)
    assert runner.capabilities.dtype == dtype
    width = 4 if dtype == "float32" else 2
    parameters = sum(array.size for array in open_weights(path).values())
    runner.prefill([Chunk(0, tokens_of(10), 0, 0)], [None])
    assert runner.memory() == {"weights": parameters * width, "kv": 2 * 2 * 2 * 16 * 256 * width}
    runner.reset(0)
    assert runner.memory()["kv"] == 0


def test_quantized_weights_stay_quantized_and_compute_their_values(tmp_path: Path, load: Load) -> None:
    quantized = make_checkpoint(tmp_path / "quantized", quantized_bits=4, tied=False)
    plain = make_checkpoint(tmp_path / "plain", tied=False)
    write_safetensors(plain / "model.safetensors", dict(open_weights(quantized)))
    runner, reference = load(quantized), load(plain)
    assert runner.memory()["weights"] < reference.memory()["weights"] / 4
    chunk = Chunk(0, tokens_of(50), 0, 0)
    np.testing.assert_allclose(runner.logits(chunk), reference.logits(chunk), atol=1e-3)


def test_capabilities(path: Path, load: Load) -> None:
    capabilities = load(path, slots=3, context=100).capabilities
    assert (capabilities.backend, capabilities.device, capabilities.slots) == ("mlx", "cpu", 3)
    assert (capabilities.context, capabilities.vocab_size) == (100, 512)
    assert capabilities.prefill_chunks == (32, 100)
    assert load(path, context=0).capabilities.context == ModelConfig.from_dir(path).choose_context(0)


def test_progress_counts_every_tensor(path: Path, load: Load) -> None:
    seen: list[tuple[str, int, int]] = []
    load(path, progress=lambda phase, done, total: seen.append((phase, done, total)))
    total = len(open_weights(path))
    assert seen[0] == ("weights", 0, total)
    assert seen[-1] == ("weights", total, total)
    assert seen == sorted(seen)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_written_to_another_runner_are_as_good_as_computed_ones(path: Path, load: Load, dtype: str) -> None:
    run_rows_gate(load(path, dtype=dtype), load(path, dtype=dtype, slots=2), 30)


def test_a_worker_restores_what_another_one_has_saved(path: Path, tmp_path: Path) -> None:
    run_tier_gate(lambda: load_runner(path, dtype="bfloat16"), tmp_path / "store")


def test_rows_of_another_type_have_another_format(path: Path, load: Load) -> None:
    formats = {load(path, dtype=dtype).capabilities.rows_format for dtype in ("float32", "bfloat16", "float32")}
    assert len(formats) == 2


def test_logits_that_are_not_finite_fail_the_call(path: Path, load: Load) -> None:
    weights = dict(open_weights(path))
    weights["model.norm.weight"] = weights["model.norm.weight"] * np.float32("nan")
    write_safetensors(path / "model.safetensors", weights)
    runner = load(path)
    assert runner.prefill([Chunk(0, (5,), 0, 0)], [GREEDY]) == [None]
    with pytest.raises(NotFiniteError):
        runner.logits(Chunk(0, (5,), 0, 0))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3, top_k=20)], ids=["greedy", "top_k"])
def test_a_row_whose_logits_are_not_finite_fails_alone(path: Path, load: Load, sampling: Sampling) -> None:
    weights = dict(open_weights(path))
    sound = load(path)
    embedding = "model.embed_tokens.weight"
    weights[embedding] = np.array(weights[embedding])
    weights[embedding][5] = np.nan
    weights["lm_head.weight"] = np.array(open_weights(path)[embedding])
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": False}))
    write_safetensors(path / "model.safetensors", weights)
    poisoned, spec = load(path), SampleSpec(structs.replace(sampling, logprobs=3), 1)
    expected = sound.decode([DecodeRow(slot, 6 + slot, 0, 0, spec) for slot in (0, 2)])
    rows = [DecodeRow(slot, token, 0, 0, spec) for slot, token in enumerate((6, 5, 8))]
    assert poisoned.decode(rows) == [expected[0], None, expected[1]]
    assert poisoned.logprobs([0, 2]) == sound.logprobs([0, 1])


def test_a_device_that_is_not_there_is_refused(path: Path, load: Load) -> None:
    with pytest.raises(LoadRefused, match="device: 'tpu'"):
        load(path, device="tpu")


def test_a_context_beyond_the_model_is_refused(path: Path, load: Load) -> None:
    with pytest.raises(CheckpointError, match="max_position_embeddings"):
        load(path, context=1 << 20)


def test_another_thread_is_refused(path: Path, load: Load) -> None:
    runner = load(path)
    with ThreadPoolExecutor(1) as other:
        call = other.submit(runner.prefill, [Chunk(0, (5,), 0, 0)], [None])
        with pytest.raises(RuntimeError, match="thread"):
            call.result()


def test_a_closed_runner_is_refused(path: Path) -> None:
    runner = load_runner(path)
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.prefill([Chunk(0, (5,), 0, 0)], [None])


def _tokens_in_batches(runner: Runner, requests: list[EngineRequest]) -> dict[int, list[int]]:
    engine = BatchEngine(runner, max_queue=len(requests), step_tokens=64)
    tokens: dict[int, list[int]] = {request.stream: [] for request in requests}
    for request in requests:
        engine.submit(request)
    while not engine.idle:
        for token in engine.step().tokens:
            tokens[token.stream].append(token.token)
    return tokens


def test_two_models_in_two_threads(tmp_path: Path) -> None:
    """Two threads each load and run a model at the same time; tokens are those of a single run."""
    paths = [make_checkpoint(tmp_path / family, family) for family in ("llama", "qwen3")]
    requests = [
        EngineRequest(stream, tokens_of(5 + 7 * stream, stream), Sampling(temperature=0.5 * (stream % 2), seed=3), 16)
        for stream in range(6)
    ]
    together = threading.Barrier(len(paths))

    def serve(path: Path) -> dict[int, list[int]]:
        runner = load_runner(path)
        together.wait(timeout=60)
        try:
            return _tokens_in_batches(runner, requests)
        finally:
            runner.close()

    with ThreadPoolExecutor(len(paths)) as threads:
        results = list(threads.map(serve, paths))
    for path, result in zip(paths, results, strict=True):
        runner = load_runner(path)
        assert result == {request.stream: alone(runner, request) for request in requests}
        runner.close()
    assert results[0] != results[1]


def test_two_models_in_one_thread(tmp_path: Path, load: Load) -> None:
    one = load(make_checkpoint(tmp_path / "one", "llama"))
    two = load(make_checkpoint(tmp_path / "two", "llama", seed=1, tied=False))
    request = EngineRequest(0, tokens_of(12), max_tokens=12)
    before = alone(one, request)
    assert alone(two, request) != before
    assert alone(one, request) == before
