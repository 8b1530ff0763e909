"""The graphs of a plan, and the text of their modules; nothing is compiled."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.iree.build import graph_plan as graphs
from workers.iree.build.graph_list import ON_DEMAND, PREFILL_CHUNKS, decode_buckets, prefill_chunks
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.build.recipe import Recipe
from workers.iree.kernels.ir.arithmetic import Bf16Dot, FloatFma
from workers.iree.kernels.matmul.integer_dots import choose_integer_dots
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import stored_parameters
from workers.iree.model.tiled_ops import FUSED_MAX_ROWS, TiledOps
from workers.precision import Quantize


def test_jax_looks_for_no_accelerator() -> None:
    program = (
        "import logging; logging.basicConfig(level='INFO'); from workers.iree.lazy_jax import jax;"
        "print({device.platform for device in jax.devices()})"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), "tpu" in done.stderr) == ("{'cpu'}", False)


@pytest.mark.parametrize("plain", [False, True])
def test_a_graph_is_the_same_whatever_the_environment_tells_jax(tmp_path: Path, plain: bool) -> None:
    """Its key has no options of JAX."""
    path = make_checkpoint(tmp_path)
    recipe = Recipe(str(path), "auto", not plain, 4, 64, (), "", str(tmp_path))
    program = (
        "import sys, msgspec; from workers.iree.build.recipe import Recipe;"
        "plan = msgspec.json.decode(sys.argv[1], type=Recipe).plan();"
        "print(plan.describe(['decode_4']) + plan.module(['decode_4', 'prefill_32', 'unfiltered_4']))"
    )
    command = [sys.executable, "-c", program, msgspec.json.encode(recipe).decode()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    other = {
        "EAGER_CONSTANT_FOLDING": "1",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_DISABLE_JIT": "1",
        "JAX_ENABLE_X64": "1",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "JAX_NO_TRACING": "1",
        "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1",
    }
    texts = [
        subprocess.run(command, env=environment | each, capture_output=True, text=True, check=True).stdout
        for each in ({}, other)
    ]
    assert texts[0] == texts[1]


def make_plan(path: Path, ops: TiledOps | PlainOps, quantize: Quantize = "none") -> GraphPlan:
    config = ModelConfig.from_dir(path)
    cache = CacheLayout.of(config, 4, 64, 16)
    return GraphPlan(
        config, ops, cache, stored_parameters(config, ops, open_weights(path), quantize), (1, 2, 4), (32, 64)
    )


@pytest.fixture
def tiled(tmp_path: Path) -> GraphPlan:
    return make_plan(make_checkpoint(tmp_path), TiledOps("bfloat16", Bf16Dot()))


@pytest.mark.parametrize(
    ("slots", "buckets"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
        (32, (1, 2, 4, 8, 16, 32)),
    ],
)
def test_decode_buckets(slots: int, buckets: tuple[int, ...]) -> None:
    assert decode_buckets(slots) == buckets


@pytest.mark.parametrize(
    ("context", "chunks"),
    [(16, (16,)), (32, (32,)), (100, (32, 64, 104)), (512, PREFILL_CHUNKS), (4096, PREFILL_CHUNKS)],
)
def test_prefill_chunks(context: int, chunks: tuple[int, ...]) -> None:
    assert prefill_chunks(context) == chunks


def test_a_cache_has_a_row_that_nobody_attends_to(tiled: GraphPlan) -> None:
    assert tiled.cache.capacity == 64 + 16
    assert tiled.cache.spare_row == 79
    assert [group.shape for group in tiled.cache.groups] == [(2, 2, 4, 2, 80 * 16)]


def test_a_cpu_starts_with_the_fewest_graphs(tiled: GraphPlan) -> None:
    assert tiled.required() == [("decode_4",), ("prefill_64",), ("head_4",), ("sample",)]
    assert tiled.first() == tiled.required(), "a prompt would take too many steps of four rows"
    steps = [("decode_1",), ("head_1",), ("decode_2",)]
    assert tiled.optional() == steps
    rare = [tuple(f"{kind}_{n}" for kind in kinds) for kinds in ON_DEMAND for n in (1, 2, 4)]
    drafts = [("decode_8",), *(tuple(f"{kind}_8" for kind in kinds) for kinds in ON_DEMAND)]
    assert tiled.rare() == [("score_64",), (f"hidden_{tiled.prefill_sizes[-1]}",), *rare, *drafts]
    assert tiled.everything() == [*tiled.required(), *tiled.optional(), *tiled.rare()]


def test_a_cpu_with_more_slots_takes_more_last_rows_at_once(tiled: GraphPlan) -> None:
    plan = replace(tiled, buckets=decode_buckets(32))
    assert plan.head_sizes == (1, 4, 32)
    assert plan.required()[0] == ("decode_32",)
    assert plan.first() == [("decode_32",)]


@pytest.mark.parametrize(("slots", "first"), [(7, 4), (8, 1)])
def test_a_cpu_is_ready_with_a_decode_graph_of_eight_rows(tiled: GraphPlan, slots: int, first: int) -> None:
    plan = replace(tiled, buckets=decode_buckets(slots))
    assert plan.first() == plan.required()[:first]


def test_what_scores_prompts_is_ready_with_its_graph_of_queries(tiled: GraphPlan) -> None:
    plan = replace(tiled, buckets=decode_buckets(8), queries=True)
    assert plan.first() == [("decode_8",), ("queries_8",)], "no other graph computes them"


def test_products_of_many_rows_leave_out_padding_rows(tiled: GraphPlan, tmp_path: Path) -> None:
    plan = replace(tiled, buckets=(4, 5))
    assert "_live" not in plan.module(["decode_4"])
    text = plan.module(["decode_5"])
    # Two layers, and the head.
    assert len(re.findall(r"= func.call @baton_layer_5_\w*_live\(", text)) == 2
    assert len(re.findall(r"= func.call @baton_linear_5_\w*_live\(", text)) == 1
    prompts = plan.module(["prefill_64"])
    kernels = re.findall(r"= func.call @baton_(\w+)\(", prompts)
    assert len(kernels) > 10
    assert all(name.endswith("_live") for name in kernels)
    assert "_live" not in make_plan(make_checkpoint(tmp_path / "plain"), PlainOps("float16")).module(["decode_4"])


def calls(text: str) -> list[str]:
    """The kernels that a module calls."""
    return re.findall(r"= func.call @baton_([a-z]+)", text)


def test_a_layer_of_a_decode_step_is_one_kernel(tiled: GraphPlan, tmp_path: Path) -> None:
    """Layers of many rows, or of prompts, are not fused: dispatches cost next to nothing there."""
    assert calls(tiled.module(["decode_2"])) == ["norm", "layer", "layer", "linear"]
    assert calls(tiled.module(["prefill_64"])).count("attention") == 2
    granite = make_plan(make_checkpoint(tmp_path / "granite", "granite"), TiledOps("bfloat16", Bf16Dot()))
    assert calls(granite.module(["decode_2"])) == ["norm", "layer", "layer", "linear"]
    assert "layer" not in calls(replace(tiled, buckets=(FUSED_MAX_ROWS + 1,)).module([f"decode_{FUSED_MAX_ROWS + 1}"]))


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("ffn", [128, 48])
def test_so_is_one_with_quantized_weights(tmp_path: Path, kind: Quantize, ffn: int) -> None:
    """All matrices are quantized, or all but down, whose 48 inputs no group divides."""
    path = make_checkpoint(tmp_path, "qwen2", ffn=ffn)
    plan = make_plan(path, TiledOps("bfloat16", Bf16Dot(), choose_integer_dots({"avx512vnni"})), kind)
    text = plan.module(["decode_2"])
    assert calls(text) == ["embedding", "norm", "layer", "layer", "quantize", "quantized"]
    assert len(re.findall(r"@baton_layer\w*_plain\(", text)) == (3 if ffn == 48 else 0)
    assert calls(plan.module(["prefill_64"])).count("attention") == 2


def test_one_prefill_graph_serves_all_lengths(tiled: GraphPlan) -> None:
    plan = replace(tiled, chunks=(32, 64, 128, 256, 512))
    assert plan.prefill_sizes == (512,)
    assert plan.required()[1] == ("prefill_512",)


def test_many_threads_have_a_prefill_graph_for_short_prompts(tiled: GraphPlan) -> None:
    """Its attention has more parts than one item for each KV head and eight rows: 8 of 32 rows here."""
    assert isinstance(tiled.ops, TiledOps)
    chunks = (32, 64, 128, 256, 512)
    assert replace(tiled, ops=replace(tiled.ops, threads=4), chunks=chunks).prefill_sizes == (512,)
    many = replace(tiled, ops=replace(tiled.ops, threads=5), chunks=chunks)
    assert many.prefill_sizes == (32, 512)
    assert ("prefill_32",) in many.optional()
    assert replace(many, chunks=(16,)).prefill_sizes == (16,)


def test_other_devices_have_all_steps_at_once(tmp_path: Path) -> None:
    """One module, so that the device holds the weights once, and the graph of a step never changes."""
    plan = make_plan(make_checkpoint(tmp_path), PlainOps("float16"))
    (together,) = plan.required()
    assert plan.first() == [together]
    assert {"decode_1", "decode_4", "prefill_32", "prefill_64", "head_1", "score_64", "copy"} <= set(together)
    assert not any(group[0].startswith("score") for group in plan.rare())
    assert ("unfiltered_4", "narrow_4") in plan.optional()
    assert {("filter_4",), ("full_4",)} <= set(plan.rare())
    assert ("sample",) not in plan.everything()


def test_no_graph_of_other_devices_takes_a_minimum_of_signed_integers(tmp_path: Path) -> None:
    """On an H100 each was -1, and each maximum at least 0: IREE began them with the neutral element of unsigned ones.

    `workers.sampling.vocabulary_blocks.first` was one, so that no token was the greedy one.
    """
    plan = make_plan(make_checkpoint(tmp_path, layers=1), PlainOps("float16"))
    reduction = re.compile(r"applies (stablehlo\.\w+) across dimensions = \[.*\] : \(tensor<(?:\d+x)*(\w+)>")
    found = {match for group in plan.everything() for match in reduction.findall(plan.module(group))}
    assert {("stablehlo.minimum", "ui32"), ("stablehlo.maximum", "f32")} <= found
    assert not found & {("stablehlo.minimum", "i32"), ("stablehlo.maximum", "i32")}


def test_a_description_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    """A key with an address or an unordered set in it would never be found again."""
    path = make_checkpoint(tmp_path, rope_scaling=LLAMA3_SCALING)
    recipe = Recipe(str(path), "auto", True, 4, 64, (), "", str(tmp_path))
    program = (
        "import sys, msgspec; from workers.iree.build.recipe import Recipe;"
        "print(msgspec.json.decode(sys.argv[1], type=Recipe).plan().describe(['decode_2']))"
    )
    command = [sys.executable, "-c", program, msgspec.json.encode(recipe).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    plan = recipe.plan()
    assert done.stdout.strip() == plan.describe(["decode_2"])
    assert plan.describe(["decode_2"]) == replace(plan, buckets=(2,)).describe(["decode_2"])
    assert plan.describe(["decode_2"]) != plan.describe(["decode_4"])
    assert plan.describe(["decode_2"]) != replace(plan, ops=PlainOps("float16")).describe(["decode_2"])
    before = plan.describe(["decode_2"])
    plan.module(["decode_2"])  # which collects kernels
    assert plan.describe(["decode_2"]) == before


def test_models_of_one_vocabulary_size_share_the_sampling_graph(tiled: GraphPlan) -> None:
    other = replace(tiled, ops=TiledOps("float32", FloatFma("f32", 16)))
    assert tiled.describe(["sample"]) == other.describe(["sample"])
    more = replace(tiled, config=replace(tiled.config, vocab_size=999))
    assert tiled.describe(["sample"]) != more.describe(["sample"])
    assert "tensor<?x999xf32>" in more.module(["sample"])


def test_module_text_depends_on_the_model_alone(tiled: GraphPlan) -> None:
    """No source path or line number: the cache of compiled graphs would miss after an edit elsewhere."""
    text = tiled.module(["decode_2", "unfiltered_2"])
    assert text == tiled.module(["decode_2", "unfiltered_2"])
    assert "loc(" not in text
    assert ".py" not in text
    assert "custom_call" not in text
    assert text.count("iree.abi.output = 2 : index") == 1
    assert "func.func public @decode_2(" in text
    assert "func.func public @unfiltered_2(" in text


def test_plain_modules_have_no_kernels(tmp_path: Path) -> None:
    text = make_plan(make_checkpoint(tmp_path), PlainOps("float16")).module(["decode_4", "copy"])
    assert "mmt4d" not in text
    assert "iree.abi.output = 0 : index" in text


def test_a_graph_is_described_by_the_code_that_makes_it(tiled: GraphPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "source_digest", lambda module: f"the source of {module}")
    assert "the source of workers.iree.build.graph_plan" in tiled.describe(["decode_2"])
    assert "the source of workers.iree.kernels.sampling.sample" in tiled.describe(["sample"])
