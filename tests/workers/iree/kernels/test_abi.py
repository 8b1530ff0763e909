"""docs/kernels.md against the code: constants, arithmetics, and the operands of every kernel. Nothing is compiled."""

import importlib
import re
from pathlib import Path

import pytest

from workers.checkpoints.architectures.parts import Experts
from workers.iree.kernels.attention.attention import attention, merge_attention, split_attention
from workers.iree.kernels.attention.rope_and_cache import RopeAndCache, rope_and_cache
from workers.iree.kernels.attention.shape import Attention, AttentionShape
from workers.iree.kernels.fused_layer import FusedLayer, fused_layer
from workers.iree.kernels.ir import arithmetic
from workers.iree.kernels.ir.arithmetic import Bf16Dot
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization, quantize_rows
from workers.iree.kernels.matmul.embedding import embedding
from workers.iree.kernels.matmul.linear import glu_linear, linear
from workers.iree.kernels.matmul.packing import Packing, made_format
from workers.iree.kernels.matmul.quantized_linear import quantized_linear
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul
from workers.iree.kernels.moe.experts import combine, experts_down, experts_up
from workers.iree.kernels.moe.routing import Mixture, group, route
from workers.iree.kernels.rowwise.glu import glu
from workers.iree.kernels.rowwise.norm import Norm, norm
from workers.iree.kernels.sampling.sample import sampling_module

PAGE = Path(__file__).parents[4] / "docs" / "kernels.md"
ROWS, HIDDEN, FFN = 6, 64, 96


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
    made = kind() if kind is Bf16Dot else kind(*([elements.split(", ")[0]] if len(elements) > 4 else []), 16)
    assert (made.element, made.k, made.per_word) == (elements.split(", ")[0], int(k), int(per_word))


def shape(kv_heads: int = 2) -> AttentionShape:
    return AttentionShape(
        layers=2, slots=3, query_heads=4, kv_heads=kv_heads, head_dim=16, capacity=192, attended=128,
        batch=ROWS, tokens=1, scale=0.25, rope_dims=16,
    )  # fmt: skip


def kernels() -> dict[str, str]:
    """Every kernel of the page, with all operands that it may have."""
    kind, both = Bf16Dot(), Norm(True, True, True)
    whole, split = Attention(shape(), kind), Attention(shape(1), kind, threads=2)
    rope = RopeAndCache(shape(), kind, 1e-5, "each")
    packed_format = made_format("int4", HIDDEN)
    assert packed_format is not None
    packing = Packing(packed_format)
    activations = ActivationQuantization.of(ROWS, HIDDEN, packing, kind, 1)
    matmul = QuantizedMatmul(activations, FFN, packing, "plain", 2)
    mixture = Mixture(ROWS, HIDDEN, Experts(count=4, per_token=2, ffn=FFN, normalize=True))
    layer = FusedLayer(rope, whole, HIDDEN, FFN, 1e-5, "silu", (True, True), (both, both), live=True)
    return {
        "linear": linear("linear", ROWS, 6, HIDDEN, kind, bias=True, live=True),
        "glu_linear": glu_linear("glu_linear", ROWS, 6, HIDDEN, kind, "silu", live=True),
        "glu": glu("glu", ROWS, FFN, kind, "silu"),
        "norm": norm("norm", ROWS, HIDDEN, 1e-5, kind, both),
        "quantize": quantize_rows(activations),
        "quantized_linear": quantized_linear("quantized_linear", matmul, bias=True, live=True),
        "embedding": embedding("embedding", ROWS, 6, HIDDEN, packing),
        "rope_and_cache": rope_and_cache("rope_and_cache", rope),
        "attention": attention("attention", whole),
        "attention_split": split_attention("attention_split", split),
        "attention_merge": merge_attention("attention_merge", split),
        "experts_route": route("experts_route", mixture),
        "experts_group": group("experts_group", mixture, live=True),
        "experts_up": experts_up("experts_up", mixture, kind, "silu"),
        "experts_down": experts_down("experts_down", mixture, kind),
        "experts_combine": combine("experts_combine", mixture),
        "layer": fused_layer("layer", layer),
        **dict.fromkeys(("tops", "sums", "tokens"), sampling_module("sample", 512)),
    }


KERNELS = kernels()


def elements(cell: str) -> list[str]:
    """The element types of operands as the page lists them, without the marks of optional ones."""
    parts = re.split(r", (?![^\[]*\])", cell)
    words = [re.sub(r"\[.*\]", "", part).split() for part in parts]
    return [{"E": "bf16"}.get(each[-1], each[-1]) for each in words]


def signature(text: str, name: str) -> tuple[list[str], list[str]]:
    """The element types of a function's inputs and results, without the number of rows."""
    found = re.search(rf"func\.func private @(?:baton_)?{name}(?:\d\w*|_\d\w*)?\((.*?)\) -> \((.*?)\) \{{", text)
    assert found is not None, name
    inputs, results = (re.findall(r"tensor<(?:[\d?]+x)*([a-z]\w*)>", part) for part in found.groups())
    return inputs, results


@pytest.mark.parametrize("row", table("Kernel"), ids=lambda row: row[0].strip("`"))
def test_kernels_take_what_the_page_lists(row: list[str]) -> None:
    name, inputs, results = row
    name = name.strip("`")
    in_place = [each for each in re.split(r", (?![^\[]*\])", inputs) if each.startswith("=")]
    expected = elements(results) + [element for each in in_place for element in elements(each)]
    assert signature(KERNELS[name], name) == (elements(inputs), expected)


def test_the_page_lists_every_kernel() -> None:
    assert {row[0].strip("`") for row in table("Kernel")} == set(KERNELS)
    for row in table("Folder"):
        assert (Path(arithmetic.__file__).parents[1] / row[0].strip("`")).exists()
