"""Adapters that the rows of a step choose, on IREE."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.sampled import sampled
from tests.workers.checkpoints.lora.lora_files import ATTENTION, make_lora, merged
from tests.workers.iree.conftest import Load
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapted_matrices import adaptable_modules
from workers.engine.runner import Chunk, DecodeRow
from workers.errors import LoadRefused
from workers.iree.lora.lora_plan import ADAPTED
from workers.iree.runner import IreeRunner
from workers.sampling.sample_spec import SampleSpec

TOKENS = tuple(map(int, np.random.default_rng(5).integers(3, 500, 20)))
TOLERANCE = 1e-4
"""The bound of logits in float32 beside those of merged weights, whose sums have another order."""
Modules = tuple[tuple[str, Path], ...]
RUNTIME: dict[str, Any] = {"runtime_loras": 2, "max_lora_rank": 9}
"""Room for adapters that are loaded at run time."""


@pytest.fixture(scope="session")
def modules(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Modules:
    root = tmp_path_factory.mktemp("adapters")
    one = make_lora(root / "one", checkpoint, seed=1)
    return ("one", one), ("two", make_lora(root / "two", checkpoint, targets=ATTENTION[:3], rank=9, seed=2))


def rows_after(runner: IreeRunner, adapters: list[int], steps: int = 4) -> list[bytes]:
    """Compute the same prompt and some tokens in a slot for each adapter, all in the same calls: their cache rows."""
    spec, count = SampleSpec(Sampling(), len(TOKENS)), len(TOKENS)
    slots = range(len(adapters))
    for slot in slots:
        runner.reset(slot)
    chunks = [Chunk(slot, TOKENS, 0, 0, adapter=adapter) for slot, adapter in enumerate(adapters)]
    tokens = sampled(runner.prefill(chunks, [spec] * len(chunks)))
    for at in range(count, count + steps):
        rows = [DecodeRow(slot, tokens[slot], at, at, spec, adapters[slot]) for slot in slots]
        tokens = sampled(runner.decode(rows))
    return [bytes(runner.read_rows(slot, 0, count + steps)) for slot in slots]


def test_rows_of_one_step_have_adapters_of_their_own(
    load: Load, checkpoint: Path, modules: Modules, tmp_path: Path
) -> None:
    plain, adapted = load(), load(lora_modules=modules)
    assert adapted.capabilities.adapters == ("one", "two")
    assert adapted.capabilities.rows_format != plain.capabilities.rows_format
    together = rows_after(adapted, [0, 1, 2, 1, 0])
    alone = [rows_after(adapted, [adapter])[0] for adapter in (0, 1, 2)]
    assert together == [alone[adapter] for adapter in (0, 1, 2, 1, 0)]
    assert len(set(alone)) == 3
    assert alone[0] == rows_after(plain, [0])[0], "bits of a server without adapters"
    for number, (name, path) in enumerate(modules, 1):
        whole = load(merged(tmp_path / name, checkpoint, path))
        adapted.reset(0)
        own, expected = (each.logits(Chunk(0, TOKENS, 0, 0, adapter=a)) for each, a in ((adapted, number), (whole, 0)))
        np.testing.assert_allclose(own, expected, atol=TOLERANCE)
        whole.close()
    with pytest.raises(ValueError, match="adapter: 3, of 2"):
        adapted.logits(Chunk(0, TOKENS, 0, 0, adapter=3))
    plain.close()
    adapted.close()


def test_gate(load: Load, modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def make() -> IreeRunner:
        made = load(lora_modules=modules[:1], **RUNTIME)
        assert made.adapter_slots is not None
        for number, (_, path) in enumerate(modules, 2):
            made.adapter_slots.read(path)(number)
        call = made.graphs.call

        def noted(name: str, *given: Any) -> Any:
            calls.append(name)
            return call(name, *given)

        monkeypatch.setattr(made.graphs, "call", noted)
        return made

    report = run_gate(make, requests=16, longest=40, max_tokens=24, speculates=True, preempts=True)
    assert min(report.grammars, report.shared, report.resumed, report.prompts_reported, report.accepted) > 0
    assert report.preemptions > 0
    kinds = {name.partition("_")[0] for name in calls}
    assert kinds >= {"decode", "prefill", f"{ADAPTED}decode", f"{ADAPTED}prefill"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_gate_of_other_types(load: Load, modules: Modules, dtype: str, quantize: str) -> None:
    report = run_gate(lambda: load(lora_modules=modules, dtype=dtype, quantize=quantize), requests=16, max_tokens=8)
    assert report.shared > 0


@pytest.mark.exhaustive
@pytest.mark.timeout(400)  # with an empty cache of graphs
def test_rows_of_a_device_without_the_kernels_of_cpus_have_adapters(
    load: Load, checkpoint: Path, modules: Modules, tmp_path: Path
) -> None:
    device: dict[str, Any] = {"device": "generic-task", "slots": 4, "context": 64}
    adapted, plain = load(lora_modules=modules, **device), load(**device)
    spec, count = SampleSpec(Sampling(), len(TOKENS)), len(TOKENS)
    for number, (name, path) in enumerate(modules, 1):
        whole = load(merged(tmp_path / name, checkpoint, path), **device)
        own, expected = (each.logits(Chunk(0, TOKENS, 0, 0, adapter=a)) for each, a in ((adapted, number), (whole, 0)))
        np.testing.assert_allclose(own, expected, atol=TOLERANCE)
        chunk = Chunk(number, TOKENS, 0, 0, adapter=number)
        (first,) = sampled(adapted.prefill([chunk], [spec]))
        assert first == own[-1].argmax()
        whole.close()
    own, expected = (each.logits(Chunk(3, TOKENS, 0, 0)) for each in (adapted, plain))
    np.testing.assert_array_equal(own, expected)
    rows = [DecodeRow(slot, 7, count, count, spec, slot % 3) for slot in (1, 2, 3)]
    tokens = sampled(adapted.decode(rows))
    alone = [sampled(adapted.decode([row]))[0] for row in rows]
    assert tokens == alone
    for runner in (adapted, plain):
        runner.close()


def test_adapters_are_loaded_at_run_time_on_cpus_only(load: Load, modules: Modules) -> None:
    with pytest.raises(LoadRefused, match="lora_dirs: adapters are loaded at run time on CPUs only"):
        load(lora_modules=modules, device="generic-task", **RUNTIME)


@pytest.mark.exhaustive
@pytest.mark.timeout(400)  # with an empty cache of graphs
@pytest.mark.parametrize(
    "family",
    [
        "deepseek_v2",
        "falcon",
        "gemma3_text",
        "gpt_neox",
        "granitemoehybrid",
        "lfm2_moe",
        "nemotron_h",
        "phi",
        "qwen3_next",
    ],
)
def test_modules_of_families_add_what_merged_weights_have(load: Load, tmp_path: Path, family: str) -> None:
    path = make_checkpoint(tmp_path / "model", family, layers=4)
    modules = {
        module: tensor.sources[source][1]
        for module, (tensor, source) in adaptable_modules(ModelConfig.from_dir(path)).items()
    }
    adapter = make_lora(tmp_path / "one", path, modules=modules, seed=3)
    adapted = load(path, lora_modules=(("one", adapter),))
    whole = load(merged(tmp_path / "merged", path, adapter))
    own, expected = (each.logits(Chunk(0, TOKENS, 0, 0, adapter=a)) for each, a in ((adapted, 1), (whole, 0)))
    np.testing.assert_allclose(own, expected, atol=5e-4)
    for runner in (adapted, whole):
        runner.close()
