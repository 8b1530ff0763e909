import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.measurement.limits import StepBytes, Work, multiply_adds, step_bytes
from bench.measurement.peak import Peak
from tests.checkpoints import make_checkpoint
from workers.checkpoints.architectures.parts import Experts
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.engine.runner import RunnerCapabilities
from workers.iree.kernels.ir.arithmetic import WidenedBf16
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS
from workers.iree.model.stored_parameters import quantization_of, stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import Quantize
from workers.scripted.runner import ScriptedRunner


def test_a_step_takes_as_long_as_the_slower_of_the_two() -> None:
    work = Work(read=100.0, multiply_adds=60.0)
    assert (work.seconds(10.0, 6.0), work.bound(10.0, 6.0)) == (10.0, "memory")
    assert (work.seconds(10.0, 3.0), work.bound(10.0, 3.0)) == (20.0, "arithmetic")


def test_multiply_adds_are_those_of_the_matrices_and_of_attention(tmp_path: Path) -> None:
    c = ModelConfig.from_dir(make_checkpoint(tmp_path))
    width = c.heads * c.head_dim
    layer = c.hidden_size * (2 * width + 2 * c.kv_heads * c.head_dim + 3 * c.ffn)
    head = c.vocab_size * c.hidden_size
    assert multiply_adds(c, 3, 10, 2) == 3 * c.layers * (layer + 2 * width * 10) + 2 * head


def test_the_peak_is_measured(tmp_path: Path) -> None:
    peak = Peak(1, tmp_path)
    try:
        # Any CPU does more than a multiply-add for every ten cycles of the slowest clock, and none a million a cycle.
        assert 1e8 < peak.measure(passes=1) < 1e15
    finally:
        peak.close()


class Archived(ScriptedRunner):
    """A runner with the weights of an archive, nothing of which is computed."""

    def __init__(self, path: Path, quantize: Quantize) -> None:
        super().__init__(slots=1, context=64, vocab_size=300)
        ops, self.config = TiledOps("bfloat16", WidenedBf16(4), PLAIN_DOTS), ModelConfig.from_dir(path)
        stored = stored_parameters(self.config, ops, open_weights(path, quantize), quantize)
        self.sizes = {each.name: each.nbytes for each in stored}
        self._quantization = quantization_of(stored)

    @property
    def capabilities(self) -> RunnerCapabilities:
        return replace(super().capabilities, dtype="bfloat16", quantization=self._quantization)

    def memory(self) -> dict[str, int]:
        return {"weights": sum(self.sizes.values())}


@pytest.mark.parametrize(("quantize", "tied"), [("none", False), ("int8", False), ("int4", True)])
def test_a_mixture_reads_the_experts_that_are_chosen_and_the_shared_one(
    tmp_path: Path, quantize: Quantize, tied: bool
) -> None:
    fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    fields["shared_expert_intermediate_size"] = 256
    path = make_checkpoint(tmp_path, "qwen2_moe", dtype="bfloat16", hidden=256, ffn=256, tied=tied, fields=fields)
    runner = Archived(path, quantize)
    all_experts = sum(size for name, size in runner.sizes.items() if ".experts_" in name)
    embedding = 0 if tied and quantize != "none" else runner.sizes["embedding"]
    others = runner.memory()["weights"] - all_experts - embedding
    read = step_bytes(runner.config, runner)
    assert read.matrices(1) == pytest.approx(others + all_experts / 4, rel=0.02)
    assert read.matrices(2) == pytest.approx(others + all_experts * (1 - (3 / 4) ** 2), rel=0.02)
    assert read.matrices(1000) == pytest.approx(others + all_experts, rel=0.02)


def test_bytes_of_experts_are_those_of_distinct_ones_on_average() -> None:
    read = StepBytes(weights=100, kv_row=0, expert=10.0, experts=Experts(4, 4, 16, normalize=True))
    assert read.matrices(1) == read.matrices(3) == 140, "every row chooses all"


def _hybrid(folder: Path) -> Path:
    kinds: dict[str, Any] = {"layer_types": ["full_attention", "conv"]}
    return make_checkpoint(folder, "lfm2", dtype="bfloat16", fields=kinds)


def test_states_are_read_and_written_and_layers_without_attention_have_no_kv(tmp_path: Path) -> None:
    runner = Archived(_hybrid(tmp_path), "none")
    config, read = runner.config, step_bytes(runner.config, runner)
    assert config.state_bytes > 0
    assert read.kv_row == 2 * config.kv_heads * config.head_dim * 2, "one of the two layers attends, in bfloat16"
    assert read.cache(3, 10) == 3 * (10 * read.kv_row + 2 * config.state_bytes)


def test_windows_bound_the_positions_that_are_read(tmp_path: Path) -> None:
    fields = {"sliding_window": 16, "sliding_window_pattern": 2}
    path = make_checkpoint(tmp_path, "gemma3_text", dtype="bfloat16", fields=fields)
    runner = Archived(path, "none")
    read = step_bytes(runner.config, runner)
    assert read.windows == ((16, read.kv_row),)
    assert [read.cache(1, context) for context in (8, 16, 40)] == [n * read.kv_row for n in (16, 32, 56)]


def test_a_row_of_a_mixture_is_multiplied_by_the_experts_that_it_chooses(tmp_path: Path) -> None:
    fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    c = ModelConfig.from_dir(make_checkpoint(tmp_path, "qwen2_moe", fields=fields))
    all_chosen = replace(c, experts=replace(c.experts, per_token=8) if c.experts else None)
    expert = math.prod((3, 64, c.hidden_size))
    assert multiply_adds(all_chosen, 5, 0, 0) - multiply_adds(c, 5, 0, 0) == 5 * c.layers * 6 * expert
