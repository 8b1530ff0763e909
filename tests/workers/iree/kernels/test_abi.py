"""docs/kernels.md against the code: constants, arithmetics, and the operands of every kernel. Nothing is compiled."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import walk_packages
from typing import NamedTuple, get_args

import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.architectures.parts import Experts, GatedDelta
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.checkpoints.quantized_matrix import GroupFormat
from workers.iree import kernels
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.kernels.attention.attention import attention, merge_attention, split_attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import Attention, AttentionShape
from workers.iree.kernels.fused_layer import FusedLayer, LayerPackings, fused_layer
from workers.iree.kernels.ir import arithmetic
from workers.iree.kernels.ir.arithmetic import Bf16Dot, Bfdot, row_stride
from workers.iree.kernels.matmul import integer_dot, neon_dots, x86_dots
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization, quantize_rows
from workers.iree.kernels.matmul.embedding import embedding
from workers.iree.kernels.matmul.integer_dots import PLAIN_DOTS, choose_integer_dots
from workers.iree.kernels.matmul.linear import glu_linear, linear
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.quantized_glu import QuantizedGlu, quantized_glu
from workers.iree.kernels.matmul.quantized_linear import quantized_linear
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul
from workers.iree.kernels.moe.experts import combine, experts_down, experts_up
from workers.iree.kernels.moe.quantized_experts import QuantizedExperts, quantized_experts_down, quantized_experts_up
from workers.iree.kernels.moe.routing import Mixture, group, route
from workers.iree.kernels.recurrent.convolution import Convolution, convolution
from workers.iree.kernels.recurrent.gated_delta import DeltaRule, gated_delta
from workers.iree.kernels.recurrent.gates import gated_norm, output_gate
from workers.iree.kernels.recurrent.state_rows import StateShape
from workers.iree.kernels.rowwise.glu import glu
from workers.iree.kernels.rowwise.norm import Norm, norm
from workers.iree.kernels.sampling.sample import sampling_module
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.stored_parameters import stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import Quantize

PAGE = Path(__file__).parents[4] / "docs" / "kernels.md"
ROWS, HIDDEN, FFN = 6, 64, 96
DELTA = GatedDelta(key_heads=1, value_heads=2, key_dim=32, value_dim=16, taps=4)
AARCH64: tuple[set[str], ...] = ({"neon", "dotprod", "i8mm"}, {"neon", "dotprod"}, {"neon"})
PACKING = Packing(GroupFormat(4, 32, "bias", "float16"))
WRITERS = {
    "write_linear": "linear",
    "write_glu_linear": "glu_linear",
    "write_quantized_linear": "quantized_linear",
    "write_attention": "attention",
    "write_split_attention": "attention_split",
    "write_merged_attention": "attention_merge",
}
"""The functions that write a partition, and their kernels."""


def table(first: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    rows = re.search(rf"^\| {first} .*\n\|[ -|]*\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    assert rows is not None, first
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows.group(1).splitlines()]


@pytest.mark.parametrize(("name", "value", "module"), [row[:3] for row in table("Constant")])
def test_constants_are_those_of_the_code(name: str, value: str, module: str) -> None:
    found = importlib.import_module(f"workers.iree.kernels.{module.strip('`')}")
    assert getattr(found, name.strip("`")) == int(value)


@pytest.mark.parametrize("row", table("Arithmetic"), ids=lambda row: row[0])
def test_arithmetics_pack_as_the_page_has_it(row: list[str]) -> None:
    name, elements, _, k, per_word = row
    kind = getattr(arithmetic, name.strip("`"))
    made = kind() if kind in (Bf16Dot, Bfdot) else kind(*([elements.split(", ")[0]] if len(elements) > 4 else []), 16)
    assert (made.element, made.k, made.per_word) == (elements.split(", ")[0], int(k), int(per_word))


@pytest.mark.parametrize("row", table("IntegerDot"), ids=lambda row: row[0])
def test_integer_dots_are_those_of_the_code(row: list[str]) -> None:
    name, levels, _, lanes, height = row
    match = re.fullmatch(r"`(\w+)(?:\((\d+)\))?`", name)
    assert match is not None
    modules = integer_dot, x86_dots, neon_dots
    kind = next(getattr(module, match[1]) for module in modules if hasattr(module, match[1]))
    dot = kind(int(match[2])) if match[2] else kind()
    assert (dot.lanes, dot.max_height) == (int(lanes), int(height))
    chosen = [choose_integer_dots(features) for features in ({"avx512vnni"}, {"avxvnni"}, {"avx2"}, *AARCH64, set())]
    for bits in (8, 4):
        assert (dot in [dots.of(bits) for dots in chosen]) == (str(bits) in levels)


def shape(kv_heads: int, batch: int, tokens: int) -> AttentionShape:
    return AttentionShape(
        layers=3, slots=5, query_heads=4, kv_heads=kv_heads, head_dim=16, capacity=192, attended=128,
        batch=batch, tokens=tokens, scale=0.25, rope_dims=8,
    )  # fmt: skip


SYMBOLS: dict[str, object] = {
    **{"rows": ROWS, "batch": ROWS, "tokens": 1, "inputs": HIDDEN, "tiles": 9, "hidden": HIDDEN, "ffn": FFN},
    **{
        "row_stride": lambda width: row_stride(width, Bf16Dot()),
        "per_word": 2,
        "limbs": 3,
        "group": 32,
        "per_level_word": 4,
    },
    **{"tile_bytes": lambda inputs: PACKING.tile_bytes(inputs)},
    **{"query_heads": 4, "kv_heads": 2, "head_dim": 16, "rope_dims": 8, "q_norm_heads": 4, "k_norm_heads": 2},
    **{"layers": 3, "slots": 5, "capacity": 192, "kv_blocks": 2, "vocab": 5003, "max": max},
    **{
        "channels": HIDDEN,
        "taps": 3,
        "keys": 32,
        "values": 32,
        "value_heads": 2,
        "value_dim": 16,
        "states": 5,
        "state_values": 7000,
    },
    **{
        "experts": 10,
        "per_token": 3,
        "pairs": ROWS * 3,
        "groups": 10,
        "cells": 313,
        "top_vectors": 20,
        "sum_vectors": 3,
    },
}
"""The values of the page's symbols in the kernels that are made here."""


class Made(NamedTuple):
    """A kernel: the function that wrote it, its text, and the symbols that have other values in it."""

    function: str
    text: str
    symbols: dict[str, object]


def made(
    function: Callable[..., str], *arguments: object, symbols: dict[str, object] | None = None, **options: object
) -> Made:
    return Made(path_of(function), function(*arguments, **options), symbols or {})


def path_of(function: Callable[..., object]) -> str:
    return f"{function.__module__.removeprefix(kernels.__name__ + '.')}.{function.__name__}"


def each_kernel() -> Iterator[tuple[str, Made]]:
    """Every kernel of the page, with all operands that it may have."""
    kind, both = Bf16Dot(), Norm(True, True, True)
    blocks, split = shape(2, 3, 2), Attention(shape(1, ROWS, 1), kind, threads=2)
    in_blocks: dict[str, object] = {"batch": 3, "tokens": 2}
    alone: dict[str, object] = {"kv_heads": 1}
    activations, of_pairs = (
        ActivationQuantization.of(rows, width, PACKING, kind, 3, PLAIN_DOTS)
        for rows, width in ((ROWS, HIDDEN), (ROWS * 3, FFN))
    )
    matmul = QuantizedMatmul(activations, 9 * 16, PACKING, PLAIN_DOTS, 2)
    mixture = Mixture(ROWS, HIDDEN, Experts(count=10, per_token=3, ffn=FFN, normalize=True))
    up, down = (QuantizedExperts(mixture, rows, PACKING, PLAIN_DOTS, 2) for rows in (activations, of_pairs))
    step = shape(2, ROWS, 1)
    rope = RopeAndCache(step, kind, 1e-5, "all")
    layer = FusedLayer(rope, Attention(step, kind), HIDDEN, FFN, 1e-5, "silu", (True, True), (both, both), live=True)
    yield "linear", made(linear, "linear", ROWS, 9, HIDDEN, kind, bias=True, live=True)
    yield "glu_linear", made(glu_linear, "glu_linear", ROWS, 9, HIDDEN, kind, "silu", live=True)
    yield "glu", made(glu, "glu", ROWS, FFN, kind, "silu", live=True)
    yield "norm", made(norm, "norm", ROWS, HIDDEN, 1e-5, kind, both, live=True)
    yield "quantize", made(quantize_rows, "quantize", activations, live=True)
    yield "quantized_linear", made(quantized_linear, "quantized_linear", matmul, bias=True, live=True)
    vnni = choose_integer_dots({"avx512vnni"})
    rows_of = (ActivationQuantization.of(ROWS, width, PACKING, kind, 1, vnni) for width in (HIDDEN, FFN))
    gates = QuantizedGlu(QuantizedMatmul(next(rows_of), 2 * FFN, PACKING, vnni, 2), next(rows_of), "silu")
    yield "quantized_glu", made(quantized_glu, "quantized_glu", gates, symbols={"limbs": 1})
    yield "embedding", made(embedding, "embedding", ROWS, 9, HIDDEN, PACKING)
    blocked = RopeAndCache(blocks, kind, 1e-5, "all")
    yield "rope_and_cache", made(rope_and_cache, "rope_and_cache", blocked, symbols=in_blocks, live=True)
    yield "attention", made(attention, "attention", Attention(blocks, kind), symbols=in_blocks, live=True)
    yield "attention_split", made(split_attention, "attention_split", split, symbols=alone, live=True)
    yield "attention_merge", made(merge_attention, "attention_merge", split, symbols=alone, live=True)
    step_states = StateShape(ROWS, 5, 7000)
    short = Convolution(step_states, kind, HIDDEN, 3, 3 * HIDDEN, gated=True, threads=2)
    yield "convolution", made(convolution, "convolution", short, live=True)
    yield "gated_delta", made(gated_delta, "gated_delta", DeltaRule(step_states, DELTA, 2), live=True)
    yield "gated_norm", made(gated_norm, "gated_norm", ROWS, DELTA, kind, 1e-5, live=True)
    yield "output_gate", made(output_gate, "output_gate", ROWS, HIDDEN, kind, live=True)
    yield "experts_route", made(route, "experts_route", mixture, live=True)
    yield "experts_group", made(group, "experts_group", mixture, live=True)
    yield "experts_up", made(experts_up, "experts_up", mixture, kind, "silu")
    yield "experts_down", made(experts_down, "experts_down", mixture, kind)
    yield "experts_up", made(quantized_experts_up, "experts_up", up, kind, "silu")
    yield "experts_down", made(quantized_experts_down, "experts_down", down)
    yield "experts_combine", made(combine, "experts_combine", mixture, live=True)
    yield "layer", made(fused_layer, "layer", layer)
    for name in ("tops", "sums", "tokens"):
        yield name, made(sampling_module, "sample", 5003, symbols={"rows": "?", **CONSTANTS})


CONSTANTS = {name.strip("`"): int(value) for name, value, *_ in table("Constant")}
KERNELS = {(name, kernel.function): kernel for name, kernel in each_kernel()}
ROWS_OF_KERNELS = [[cell.strip("`") for cell in row] for row in table("Kernel")]


class Operand(NamedTuple):
    name: str
    element: str
    shape: tuple[object, ...]


def listed(cell: str, symbols: dict[str, object]) -> list[tuple[Operand, bool]]:
    """The operands of a cell, each with whether it is updated in place."""
    found = re.findall(r"(=?)(\w+)\??  ?(\w+) \[([^\]]*)\](?:, |$)", cell)
    assert len(found) == cell.count("["), f"not an operand: {cell}"
    return [
        (Operand(name, "bf16" if element == "E" else element, shape_of(dimensions, symbols)), mark == "=")
        for mark, name, element, dimensions in found
    ]


def shape_of(dimensions: str, symbols: dict[str, object]) -> tuple[object, ...]:
    """The value of dimensions as the page has them: sums, products and exact quotients of symbols."""
    names = {"__builtins__": {}, **CONSTANTS, **SYMBOLS, **symbols}
    values = eval(f"[{dimensions}]", names)
    assert all(value == "?" or value == int(value) for value in values), dimensions
    return tuple(value if value == "?" else int(value) for value in values)


def signature(text: str, name: str) -> tuple[list[Operand], list[Operand], list[str]]:
    """The inputs and results of a kernel's function, and the names of those that are updated in place."""
    head = re.search(
        rf"func\.func private @(?:baton_)?{name}(?:_\d\w*)?\((.*?)\) -> \((.*?)\) \{{(.*?)\n  \}}", text, re.DOTALL
    )
    assert head is not None, name
    kind = r"tensor<((?:[\d?]+x)*)([a-z]\w*)>"
    inputs = re.findall(rf"%i_(\w+): {kind}", head.group(1))
    in_place = re.findall(r"%i_(\w+)", re.findall(r"-> \((.*)\)", head.group(3))[0])
    body = text[: head.start()].rpartition("hal.executable.source")[2]
    names = [*re.findall(r"%o_(\w+) = hal\.interface\.binding", body), *in_place]
    results = [(name, *each) for name, each in zip(names, re.findall(kind, head.group(2)), strict=True)]
    return [operand(*each) for each in inputs], [operand(*each) for each in results], in_place


def operand(name: str, shape: str, element: str) -> Operand:
    return Operand(name, element, tuple("?" if size == "?" else int(size) for size in shape.split("x")[:-1]))


@pytest.mark.parametrize(("name", "function", "inputs", "results"), ROWS_OF_KERNELS)
def test_kernels_take_what_the_page_lists(name: str, function: str, inputs: str, results: str) -> None:
    kernel = KERNELS[name, function]
    given, given_back = listed(inputs, kernel.symbols), listed(results, kernel.symbols)
    in_place = [each for each, marked in given if marked]
    assert signature(kernel.text, name) == (
        [each for each, _ in given],
        [*(each for each, _ in given_back), *in_place],
        [each.name for each in in_place],
    )


def test_a_layer_takes_quantized_matrices_as_the_page_says() -> None:
    kind, both, step = Bf16Dot(), Norm(True, True, True), shape(2, ROWS, 1)
    packings, rope = LayerPackings([PACKING] * 4, PLAIN_DOTS, 1), RopeAndCache(step, kind, 1e-5, "all")
    biases, norms, attended = (True, True), (both, both), Attention(step, kind)
    layer = FusedLayer(rope, attended, HIDDEN, FFN, 1e-5, "silu", biases, norms, live=True, packings=packings)
    (inputs,) = (row[2] for row in ROWS_OF_KERNELS if row[0] == "layer")
    expected = re.sub(r"(qkv|o|gate_up|down) E \[([^\]]*), ([^,\]]*) \* 16\]", r"\1 i8 [\2, tile_bytes(\3)]", inputs)
    assert expected.count("tile_bytes") == 4
    given, _, _ = signature(fused_layer("layer", layer), "layer")
    assert given == [each for each, _ in listed(expected, {})]


def test_the_page_lists_every_kernel() -> None:
    """Every function of the package that returns a kernel's text."""
    modules = [importlib.import_module(each.name) for each in walk_packages(kernels.__path__, kernels.__name__ + ".")]
    functions = [
        function
        for module in modules
        if not module.__name__.startswith(kernels.__name__ + ".ir.")
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not function.__name__.startswith("_")
    ]
    assert {function for _, function, *_ in ROWS_OF_KERNELS} == {
        path_of(function) for function in functions if function.__annotations__["return"] is str
    }
    page = PAGE.read_text()
    for function in functions:
        assert not function.__name__.startswith("write_") or function.__name__ in WRITERS, function.__name__
    for name in WRITERS.values():
        assert f"`{name}`" in page


def test_the_page_lists_every_symbol() -> None:
    defined = {name for row in table("Symbol") for name in re.findall(r"`(\w+)(?:\(\w+\))?`", row[0])}
    shapes = " ".join(re.findall(r"\[([^\]]*)\]", " ".join(cell for row in ROWS_OF_KERNELS for cell in row[2:])))
    assert set(re.findall(r"[A-Za-z_]\w*", shapes)) - set(CONSTANTS) - {"max"} == defined


def test_the_page_lists_the_names_that_models_call(tmp_path: Path) -> None:
    kinds = {kind for plan in plans(tmp_path) for kind in collected(plan)}
    assert {*kinds, "tops", "sums", "tokens"} == {name for name, *_ in ROWS_OF_KERNELS}


def plans(folder: Path) -> Iterator[GraphPlan]:
    """Models that use all kernels between them."""
    kinds: list[tuple[str, Quantize]] = [(each, bits) for each in ("llama", "mixtral") for bits in get_args(Quantize)]
    kinds.append(("qwen3_5_text", "none"))
    for family, quantize in kinds:
        path = make_checkpoint(folder / f"{family}-{quantize}", family)
        dots = choose_integer_dots({"avx512vnni"})
        config, ops = ModelConfig.from_dir(path), TiledOps("bfloat16", Bf16Dot(), dots, threads=3)
        stored = stored_parameters(config, ops, open_weights(path), quantize)
        yield GraphPlan(config, ops, CacheLayout.of(config, 80, 64, 64), stored, (2, 80), (32,))


def collected(plan: GraphPlan) -> set[str]:
    """The kernels of a model's steps, without the sizes in their names."""
    for graph in ("decode_2", "decode_80", "prefill_32"):
        plan.module([graph])
    assert isinstance(plan.ops, TiledOps)
    return {re.sub(r"_\d.*?(_split|_merge|)$", r"\1", name.removeprefix("baton_")) for name in plan.ops.bodies}


def test_the_page_lists_folders_that_there_are() -> None:
    for row in table("Folder"):
        assert (Path(arithmetic.__file__).parents[1] / row[0].strip("`")).exists()
