"""Linear layers and GLU against numpy, and the same bits whatever rows stand beside a row."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workers.iree.kernels.running import ARITHMETICS, NUMPY, TOLERANCE, Run, floats, random, rounded, words
from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, Bf16Dot, FloatFma, WidenedBf16, row_stride
from workers.iree.kernels.matmul.linear import glu_linear, linear
from workers.iree.kernels.matmul.packing import pack_matrix


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("rows", [16, 27])
def test_linear(run: Run, arithmetic: Arithmetic, rows: int) -> None:
    inputs, outputs = 96, 40  # 40 outputs are three tiles, the last not full
    x, w, bias = random(27, inputs), random(outputs, inputs, seed=1), random(48, seed=2)
    packed = pack_matrix(w.astype(NUMPY[arithmetic.element]), arithmetic.k)
    tiles = packed.shape[0]
    (out,) = run(
        linear("linear", rows, tiles, inputs, arithmetic, bias=True),
        words(x[:rows], arithmetic, row_stride(inputs, arithmetic) - inputs // arithmetic.per_word),
        packed.reshape(tiles, -1),
        bias,
    )
    expected = rounded(x[:rows], arithmetic) @ rounded(w, arithmetic).T + bias[:outputs]
    np.testing.assert_allclose(out[:, :outputs], expected, atol=TOLERANCE[arithmetic.element] * 20)
    (alone,) = run(
        linear("linear", 1, tiles, inputs, arithmetic, bias=True),
        words(x[rows - 1 : rows], arithmetic, row_stride(inputs, arithmetic) - inputs // arithmetic.per_word),
        packed.reshape(tiles, -1),
        bias,
    )
    np.testing.assert_array_equal(alone[0], out[-1])


def test_a_product_shared_by_threads_is_the_same(run: Run) -> None:
    # 50 tiles, two at a time, for 7, 14 and 25 workgroups: shares get smaller, and the last ones may be empty.
    rows, inputs, tiles, arithmetic = 9, 32, 50, FloatFma("f32", 16)
    x, unpacked = random(rows, inputs), random(tiles * 16, inputs, seed=1)
    w = pack_matrix(unpacked, 1).reshape(tiles, -1)
    outs = [
        run(linear("linear", rows, tiles, inputs, arithmetic, bias=False, threads=n), words(x, arithmetic, 16), w)[0]
        for n in (1, 2, 5)
    ]
    np.testing.assert_allclose(outs[0], x @ unpacked.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])


@pytest.mark.parametrize(
    ("arithmetic", "rows", "lives"),
    [
        # Blocks and sets of tiles that begin before those in front of them end; parts of weights by a mask or not.
        pytest.param(FloatFma("f32", 16), 25, (25, 24, 17, 3, 1), id="f32"),
        pytest.param(WidenedBf16(16), 14, (14, 13, 9, 2), id="bf16-masked"),
        pytest.param(WidenedBf16(4), 11, (11, 10, 9, 2), id="bf16-widened"),
        # Blocks of twelve rows and one of eight, of six and one of four, and of two alone.
        pytest.param(Bf16Dot(), 100, (100, 99, 68, 64, 33, 32, 24, 20, 16, 13, 12, 9, 8, 3, 1), id="many-of-12"),
        pytest.param(FloatFma("f32", 8), 70, (70, 64, 40, 32, 17, 16, 8, 5, 4, 1), id="many-of-6"),
        pytest.param(WidenedBf16(4), 66, (66, 65, 40, 9, 2, 1), id="many-of-2"),
    ],
)
@pytest.mark.parametrize("kind", ["linear", "glu_linear"])
def test_live_rows_are_those_of_a_product_of_all(
    run: Run, arithmetic: Arithmetic, rows: int, lives: tuple[int, ...], kind: str
) -> None:
    inputs, tiles = 32, 5
    x, w = (
        random(rows, inputs),
        pack_matrix(random(2 * tiles * 16, inputs, seed=1).astype(NUMPY[arithmetic.element]), arithmetic.k),
    )
    weights, width = w.reshape(2 * tiles, -1), tiles * 16

    def product(live: int | None) -> NDArray[Any]:
        given = [] if live is None else [np.array([live], np.int32)]
        if kind == "glu_linear":
            text = glu_linear("glu_linear", rows, tiles, inputs, arithmetic, "silu", threads=2, live=live is not None)
        else:
            text = linear("linear", rows, 2 * tiles, inputs, arithmetic, bias=False, threads=2, live=live is not None)
        return run(text, words(x, arithmetic, 16), weights, *given)[0][:, :width]

    whole = product(None)
    for live in lives:
        np.testing.assert_array_equal(product(live)[:live], whole[:live])
    np.testing.assert_array_equal(product(rows + 1), whole)  # nothing is written behind the last row


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_glu_linear(run: Run, arithmetic: Arithmetic, activation: Activation) -> None:
    rows, inputs, ffn = 9, 64, 48
    x, w = random(rows, inputs), random(2 * ffn, inputs, seed=1) / np.float32(8)
    packed = pack_matrix(w.astype(NUMPY[arithmetic.element]), arithmetic.k)
    text = glu_linear("glu_linear", rows, ffn // 16, inputs, arithmetic, activation)
    padding = row_stride(inputs, arithmetic) - inputs // arithmetic.per_word
    (out,) = run(text, words(x, arithmetic, padding), packed.reshape(packed.shape[0], -1))
    both = rounded(x, arithmetic) @ rounded(w, arithmetic).T
    gate = both[:, :ffn]
    silu = gate / (1 + np.exp(-gate))
    gelu = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    expected = (silu if activation == "silu" else gelu) * both[:, ffn:]
    np.testing.assert_allclose(floats(out, ffn, arithmetic), expected, atol=TOLERANCE[arithmetic.element] * 8)
