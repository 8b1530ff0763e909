"""Adapters that the rows of a step choose, on MLX."""

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.families import FAMILIES
from tests.gate import run_gate
from tests.workers.checkpoints.lora.lora_files import ATTENTION, make_lora, merged
from tests.workers.mlx.conftest import Load, load_runner
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.checkpoints.lora.adapted_matrices import adaptable_modules
from workers.engine.runner import Chunk
from workers.mlx.families import BATCHED
from workers.mlx.runner import MlxRunner

TOKENS = tuple(map(int, np.random.default_rng(5).integers(3, 500, 20)))


@pytest.mark.parametrize("bits", [None, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_gate(tmp_path: Path, load: Load, bits: int | None) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2, quantized_bits=bits)
    one = make_lora(tmp_path / "one", path, seed=1)
    modules = (("one", one), ("two", make_lora(tmp_path / "two", path, targets=ATTENTION[:3], rank=9, seed=2)))

    def make() -> MlxRunner:
        made = load_runner(path, slots=6, context=64, lora_modules=modules[:1], runtime_loras=2, max_lora_rank=9)
        assert made.adapter_slots is not None
        for number, (_, adapter) in enumerate(modules, 2):
            made.adapter_slots.read(adapter)(number)
        return made

    report = run_gate(
        make,
        requests=14,
        longest=34,
        max_tokens=24,
        speculates=True,
        preempts=True,
    )
    assert min(report.shared, report.resumed, report.prompts_reported, report.accepted) > 0
    assert min(report.grammars, report.preemptions) > 0
    plain, adapted = load(path), load(path, lora_modules=modules)
    assert plain.capabilities.rows_format != adapted.capabilities.rows_format
    assert (plain.logits(Chunk(0, TOKENS, 0, 0)) == adapted.logits(Chunk(0, TOKENS, 0, 0))).all()
    if bits is None:
        own = adapted.logits(Chunk(1, TOKENS, 0, 0, adapter=1))
        whole = load(merged(tmp_path / "merged", path, one)).logits(Chunk(0, TOKENS, 0, 0))
        np.testing.assert_allclose(own, whole, atol=1e-4)
        assert abs(own - plain.logits(Chunk(1, TOKENS, 0, 0))).max() > 0.1


def test_experts_are_refused_by_name(tmp_path: Path, load: Load) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen3_moe", layers=2)
    dense = make_checkpoint(tmp_path / "dense", layers=2)
    adapter = make_lora(tmp_path / "one", dense, targets=["down_proj"])
    with pytest.raises(CheckpointError, match=r"adapters of qwen3_moe may change k_proj, .* not model\.layers\.0\.mlp"):
        load(path, lora_modules=(("one", adapter),))


UNTIED = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt_neox", "gpt_oss", "phi", "phimoe")
"""Families whose heads have weights of their own on MLX."""
REFUSED = {"granitemoehybrid": "shared_mlp"}
"""Modules that mlx-lm has in another form, which IREE adapts."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", sorted(set(FAMILIES) & BATCHED))
def test_every_module_of_every_family_adds_what_a_merged_weight_has(tmp_path: Path, load: Load, family: str) -> None:
    path = make_checkpoint(tmp_path / "model", family, layers=4, tied=family not in UNTIED)
    modules = {
        module: tensor.sources[source][1]
        for module, (tensor, source) in adaptable_modules(ModelConfig.from_dir(path)).items()
    }
    if (refused := REFUSED.get(family)) is not None:
        whole_adapter = make_lora(tmp_path / "all", path, modules=modules)
        with pytest.raises(CheckpointError, match=rf"\.{refused}.* is no linear module on the MLX backend"):
            load(path, context=96, lora_modules=(("one", whole_adapter),))
        modules = {module: shape for module, shape in modules.items() if refused not in module}
    adapter = make_lora(tmp_path / "one", path, modules=modules, seed=3)
    adapted = load(path, context=96, lora_modules=(("one", adapter),))
    whole = load(merged(tmp_path / "merged", path, adapter), context=96)
    own, expected = (each.logits(Chunk(0, TOKENS, 0, 0, adapter=a)) for each, a in ((adapted, 1), (whole, 0)))
    np.testing.assert_allclose(own, expected, atol=5e-4)
    adapted.reset(0)
    assert abs(own - adapted.logits(Chunk(0, TOKENS, 0, 0))).max() > 0.05
