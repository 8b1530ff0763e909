"""Every family on both runners against transformers, with few and small graphs: one chunk and one row a step.

A family of `tests.families` that neither these cases nor those of `test_logits` name is tested with `DEEPER` layers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.families import DENSE, FAMILIES, LATENT, MIXTURES
from tests.families.uneven import UNEVEN
from tests.reference import conftest
from tests.reference.conftest import BACKENDS, Pair, Reference, dequantize, load_runner
from tests.reference.jax_graphs import JaxGraphs
from tests.reference.layers.gemma4_layers import ALL as GEMMA4_ALL
from tests.reference.layers.gemma4_layers import DENSE as GEMMA4_DENSE
from tests.reference.layers.gemma4_layers import EXPERTS as GEMMA4_EXPERTS
from tests.reference.layers.mamba_layers import NEMOTRON_EXPERTS, NEMOTRON_LATENTS
from tests.sampled import sampled
from tests.workers.checkpoints.low_bits.low_bit_files import to_stacked_mxfp4
from workers.engine.runner import Chunk, DecodeRow
from workers.sampling.sample_spec import SampleSpec

pytestmark = pytest.mark.reference

TOLERANCE = 2e-4
CONTEXT = 32
TOKENS = tuple(map(int, np.random.default_rng(11).integers(3, 500, CONTEXT)))
PROMPT = TOKENS[:19]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LATENT_YARN = YARN | {"mscale": 0.8, "mscale_all_dim": 1.3}
FALCON_7B = {"new_decoder_architecture": False, "bias": False}
FALCON_HEADS = FALCON_7B | {"multi_query": False, "num_kv_heads": 4, "parallel_attn": False}
LONG = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.5 + i for i in range(6)]}
LONG_WITH_FACTORS = {
    "type": "longrope",
    # transformers always takes these for Phi-3.5-MoE; the model's own code takes the long ones beyond 16 positions.
    "short_factor": [1.5 + i for i in range(8)],
    "long_factor": [1.5 + i for i in range(8)],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, dict[str, Any]] = {
    "smollm3": {"family": "smollm3", "rope_scaling": YARN},
    "olmo2": {"family": "olmo2", "tied": False},
    "olmo3": {"family": "olmo3", "rope_scaling": YARN, "fields": {"sliding_window": 9}},
    "seed_oss": {"family": "seed_oss"},
    "phi3": {
        "family": "phi3",
        "tied": False,
        "rope_scaling": LONG,
        "fields": {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 16},
    },
    "gemma2": {"family": "gemma2", "fields": {"sliding_window": 9}},
    "gemma3_text": {"family": "gemma3_text", "hidden": 80, "fields": {"sliding_window": 9}},
    "gemma4_text": {"family": "gemma4_text", "layers": 4, "fields": GEMMA4_ALL | {"sliding_window": 9}},
    "gemma4-small": {"family": "gemma4_text", "layers": 4, "fields": {"sliding_window": 9, "attention_k_eq_v": True}},
    "gemma4-dense": {"family": "gemma4_text", "fields": GEMMA4_DENSE | {"sliding_window": 9}},
    "gemma4-experts": {"family": "gemma4_text", "tied": False, "fields": GEMMA4_EXPERTS | {"sliding_window": 9}},
    "gemma4_unified_text": {"family": "gemma4_unified_text", "fields": GEMMA4_DENSE | {"sliding_window": 9}},
    "granite": {"family": "granite", "tied": False},
    "granite-4-bit": {"family": "granite", "quantized_bits": 4},
    "granite-8-bit": {"family": "granite", "quantized_bits": 8, "group_size": 64},
    "qwen3_moe": {"family": "qwen3_moe", "tied": False},
    "mixtral": {"family": "mixtral", "tied": False},
    "mixtral-4-bit": {"family": "mixtral", "tied": False, "quantized_bits": 4},
    "stablelm": {"family": "stablelm", "tied": False},
    "stablelm-parallel": {
        "family": "stablelm",
        "fields": {"use_parallel_residual": True, "qk_layernorm": False, "use_qkv_bias": False},
    },
    "gpt_neox": {"family": "gpt_neox", "tied": False},
    "gpt_neox-serial": {
        "family": "gpt_neox",
        "tied": False,
        "fields": {"use_parallel_residual": False, "hidden_act": "gelu_fast"},
    },
    "cohere": {"family": "cohere"},
    "cohere-plain": {"family": "cohere", "attention_bias": True, "fields": {"use_qk_norm": False}},
    "cohere2": {"family": "cohere2", "fields": {"sliding_window": 9}},
    "cohere2-untied": {"family": "cohere2", "tied": False},
    "phi": {"family": "phi", "tied": False},
    "falcon": {"family": "falcon"},
    "falcon-7b": {"family": "falcon", "tied": False, "fields": FALCON_7B},
    "falcon-heads": {"family": "falcon", "fields": FALCON_HEADS},
    "falcon-one-norm": {"family": "falcon", "fields": {"num_ln_in_parallel_attn": 1}},
    "glm": {"family": "glm", "tied": False},
    "glm4": {"family": "glm4", "tied": False},
    "exaone4": {"family": "exaone4", "fields": {"sliding_window": 9}},
    "exaone4-global": {
        "family": "exaone4",
        "fields": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    },
    "nemotron": {"family": "nemotron", "tied": False},
    "olmo": {"family": "olmo", "tied": False},
    "arcee": {"family": "arcee", "tied": False, "rope_scaling": YARN},
    "helium": {"family": "helium", "tied": False},
    "ernie4_5": {"family": "ernie4_5"},
    "ministral": {"family": "ministral", "tied": False, "fields": {"sliding_window": 9}},
    "ministral3": {"family": "ministral3", "tied": False},
    "deepseek_v2": {"family": "deepseek_v2", "tied": False, "rope_scaling": LATENT_YARN},
    "deepseek_v2-greedy": {"family": "deepseek_v2", "tied": False, "fields": {"topk_method": "greedy"}},
    "deepseek_v3": {"family": "deepseek_v3", "tied": False, "rope_scaling": LATENT_YARN},
    "glm4_moe_lite": {"family": "glm4_moe_lite", "tied": False},
    "minicpm3": {"family": "minicpm3", "rope_scaling": LATENT_YARN},
    "minicpm3-8-bit": {
        "family": "minicpm3",
        "layers": 1,
        "fields": {"q_lora_rank": 64},
        "quantized_bits": 8,
    },
    "qwen2_moe": {"family": "qwen2_moe", "tied": False},
    "qwen2_moe-dense": {"family": "qwen2_moe", "tied": False, "fields": {"decoder_sparse_step": 2}},
    "qwen2_moe-8-bit": {
        "family": "qwen2_moe",
        "layers": 1,
        "ffn": 96,
        "fields": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 72, "norm_topk_prob": True},
        "quantized_bits": 8,
    },
    "olmoe": {"family": "olmoe", "tied": False},
    "granitemoe": {"family": "granitemoe"},
    "granitemoeshared": {"family": "granitemoeshared"},
    "qwen3_5_moe_text": {"family": "qwen3_5_moe_text", "tied": False},
    "qwen3_next": {"family": "qwen3_next", "tied": False},
    "glm4_moe": {"family": "glm4_moe", "tied": False},
    "ernie4_5_moe": {"family": "ernie4_5_moe"},
    "phimoe": {"family": "phimoe", "tied": False, "rope_scaling": LONG_WITH_FACTORS},
    "lfm2_moe": {"family": "lfm2_moe", "layers": 3},
    "granitemoehybrid": {"family": "granitemoehybrid", "fields": {"time_step_limit": [0.01, 0.5]}},
    "granitemoehybrid-experts": {
        "family": "granitemoehybrid",
        "tied": False,
        "fields": {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "position_embedding_type": "rope",
            "time_step_limit": [0.01, 0.5],
        },
    },
    "nemotron_h": {"family": "nemotron_h", "layers": 4, "fields": {"use_conv_bias": False}},
    "nemotron_h-experts": {"family": "nemotron_h", "layers": 4, "fields": NEMOTRON_EXPERTS},
    "nemotron_h-latents": {"family": "nemotron_h", "layers": 4, "fields": NEMOTRON_LATENTS},
    "gpt_oss": {"family": "gpt_oss", "tied": False, "fields": {"sliding_window": 9}},
    "gpt_oss-mxfp4": {"family": "gpt_oss", "tied": False, "fields": {"sliding_window": 9}},
}
"""LongRoPE's long factors are meant from position 16 on, so everything below is longer than that. The square root of
Gemma 3's width is not exact in bfloat16."""
DEEPER = 4
"""Layers enough that greedy tokens do not repeat the last one, whatever a family does with its embeddings."""
NAMED = {case["family"] for case in (*CASES.values(), *conftest.CASES.values())}
CASES |= {family: {"family": family, "layers": DEEPER} for family in FAMILIES if family not in NAMED}
CASES |= {name: dict(case) for name, case in UNEVEN.items()}
KNOWN = {("iree", "seed_oss"), ("iree", "gemma4_text")}
"""The graphs of the first are those of qwen2 (tests/reference/test_logits.py). tests/workers/iree/model/test_gemma4.py
compares those of the second."""
PLAIN = ("generic", "granite")
"""Multipliers in the graphs that GPUs run, which other operations make."""
KERNELS = (
    "starcoder2-uneven",
    "gpt_neox-uneven",
    "cohere-uneven-8-bit",
    "qwen2_moe-8-bit",
    "glm4_moe",
    "minicpm3-8-bit",
)
"""The cases of `DENSE`, `MIXTURES` and `LATENT` whose graphs are compiled: between them they have every operation of
the others."""
ON_MLX = ("gemma4-dense", "gemma4-experts", "gemma4_unified_text")
"""Gemma 4's models, which mlx-lm has in one module. In IREE's graphs the case `gemma4_text` has all of them at once."""
JAX_FAMILIES = (*DENSE, *MIXTURES, *LATENT, "nemotron_h")
UNGATED = ("nemotron_h-experts", "nemotron_h-latents")
"""Experts without a gate, whose kernels tests/workers/iree/kernels/moe compares with numpy."""
IN_JAX = [
    case
    for case in CASES
    if case == "gemma4-small" or (CASES[case]["family"] in JAX_FAMILIES and case not in (*KERNELS, *UNGATED))
]
"""The others, whose graphs for GPUs JAX evaluates: their parameters, and what is done with them."""
WITHOUT_MLX = ("falcon", "falcon-7b", "falcon-heads", "falcon-one-norm", "qwen2_moe-dense")
"""mlx-lm has no Falcon, and experts in every layer of Qwen2-MoE."""
PAIRS = [
    *(
        (backend, case)
        for case in CASES
        for backend in BACKENDS
        if (backend, case) not in KNOWN and case not in (*IN_JAX, *ON_MLX)
    ),
    *(("mlx", case) for case in ON_MLX),
    PLAIN,
    *(("mlx", case) for case in IN_JAX if case not in WITHOUT_MLX),
]
FURTHER = {
    ("iree", case)
    for case in (
        "llama-uneven",
        "olmo2-uneven",
        "mixtral-uneven",
        "granite-4-bit",
        "granite-8-bit",
        "granite-uneven-8-bit",
        "gpt_oss",
        "minicpm3-8-bit",
    )
}
LIKE_OTHERS = (
    *("gemma", "granite", "mimo", "mixtral", "olmo2", "olmo3", "qwen3_moe", "smollm3"),
    *("gemma3_text", "gemma3_text-uneven", "phi3", "phi3-uneven"),
    *UNGATED,
)
"""Cases whose operations other cases have. Their graphs are evaluated by JAX, and compiled every night."""
FURTHER |= {("iree", case) for case in ("granitemoehybrid-experts", *LIKE_OTHERS)}
"""Their graphs differ from those of other cases in sizes alone, or combine what other cases have."""
PARAMS = [pytest.param(each, marks=[pytest.mark.exhaustive] if each in FURTHER else ()) for each in PAIRS]


@pytest.fixture(scope="module", params=PARAMS, ids="-".join)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Iterator[Pair]:
    backend, case = request.param
    path = plain = make_checkpoint(tmp_path_factory.mktemp(case), **CASES[case])
    if "bit" in case:
        plain = dequantize(path, path.with_name(f"{path.name}-plain"))
    elif "mxfp4" in case:
        path, plain = to_stacked_mxfp4(path)
    runner = load_runner(backend, path, cache_dir, context=CONTEXT)
    yield Pair(runner, Reference(plain))
    runner.close()


def test_logits(pair: Pair) -> None:
    expected = pair.reference.logits(TOKENS)
    assert expected.std() > 0.1
    np.testing.assert_allclose(pair.runner.logits(Chunk(0, TOKENS, 0, 0)), expected, atol=TOLERANCE)


def test_greedy_tokens(pair: Pair) -> None:
    runner, start, sampling = pair.runner, len(PROMPT), Sampling()
    runner.reset(0)
    (first,) = runner.prefill([Chunk(0, PROMPT, 0, 0)], [SampleSpec(sampling, start)])
    assert first is not None
    tokens = [first]
    for at in range(start, CONTEXT):
        tokens += sampled(runner.decode([DecodeRow(0, tokens[-1], at, at, SampleSpec(sampling, at + 1))]))
    assert tokens == pair.reference.greedy(PROMPT, CONTEXT - start + 1)
    assert len(set(tokens)) >= 3


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.exhaustive] if case in ("gemma4-small", UNGATED[0]) else ())
        for case in (*IN_JAX, *LIKE_OTHERS, "gpt_oss")
    ],
)
def test_graphs_in_jax(torch: Any, tmp_path: Path, case: str) -> None:
    path = make_checkpoint(tmp_path, **CASES[case])
    actual, expected = JaxGraphs(path, CONTEXT).logits(Chunk(0, TOKENS, 0, 0)), Reference(path).logits(TOKENS)
    assert expected.std() > 0.1
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)
