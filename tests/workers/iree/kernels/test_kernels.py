"""Each kernel against numpy, and the same bits whatever rows stand beside a row."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import Activation
from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.attention.attention import POSITIONS, Attention
from workers.iree.kernels.attention.rope_and_cache import Heads, Place
from workers.iree.kernels.ir.builder import LANES
from workers.iree.kernels.ir.partition import SHARES, workgroups
from workers.iree.kernels.matmul.arithmetic import Arithmetic, Pairs, Singles, Widened, arithmetic_of
from workers.iree.kernels.matmul.linear import gated, linear, stride
from workers.iree.kernels.norm import Norm, norm
from workers.iree.model.tiled_ops import pack

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}
ARITHMETICS = [
    pytest.param(Singles("f32", 16), id="f32"),
    pytest.param(Singles("f16", 16), id="f16"),
    pytest.param(Widened(4), id="bf16-widened"),
    pytest.param(
        Pairs(),
        id="bf16-pairs",
        marks=pytest.mark.skipif("avx512bf16" not in Cpu.of_host().features, reason="the CPU has no AVX512-BF16"),
    ),
]
Run = Callable[..., list[NDArray[Any]]]


@pytest.fixture(scope="module")
def run(cache_dir: Path) -> Run:
    device = Device("local-sync", 1)
    compiler = Compiler(cache_dir, device.compile_flags(), device.compile_target())

    def call(text: str, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
        (name, arguments, results) = re.findall(r"func\.func private @(\w+)\((.*?)\) -> \((.*?)\) \{", text)[0]
        names = ", ".join(re.findall(r"%\w+", arguments))
        types = ", ".join(re.findall(r": (tensor<[^>]*>)", arguments))
        count = results.count("tensor<")
        out = ", ".join(f"%r#{i}" for i in range(count)) if count > 1 else "%r"
        entry = f"""
          func.func public @main({arguments}) -> ({results}) {{
            %r{f":{count}" if count > 1 else ""} = func.call @{name}({names}) : ({types}) -> ({results})
            return {out} : {results}
          }}"""
        module = device.load(compiler.compile(f"module @kernel {{ {text} {entry} }}"), None, "")
        views = [device.upload(_bits(array), array.dtype.name) for array in arrays]
        return [device.download(view) for view in module.call("main", *views)]

    return call


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def words(x: NDArray[np.float32], arithmetic: Arithmetic, padding: int) -> NDArray[np.int32]:
    flat = x.astype(ml_dtypes.bfloat16 if arithmetic.word == 2 else np.float32)
    return np.pad(np.ascontiguousarray(flat).view(np.int32), ((0, 0), (0, padding)))


def floats(x: NDArray[np.int32], width: int, arithmetic: Arithmetic) -> NDArray[np.float32]:
    kind = ml_dtypes.bfloat16 if arithmetic.word == 2 else np.float32
    whole: NDArray[np.float32] = np.ascontiguousarray(x[:, : width // arithmetic.word]).view(kind).astype(np.float32)
    return whole


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rounded(x: NDArray[np.float32], arithmetic: Arithmetic) -> NDArray[np.float32]:
    out: NDArray[np.float32] = x.astype(NUMPY[arithmetic.element]).astype(np.float32)
    return out


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("rows", [16, 27])
def test_linear(run: Run, arithmetic: Arithmetic, rows: int) -> None:
    inputs, outputs = 96, 40  # 40 outputs are three tiles, the last not full
    x, w, bias = random(27, inputs), random(outputs, inputs, seed=1), random(48, seed=2)
    packed = pack(w.astype(NUMPY[arithmetic.element]), arithmetic.k)
    tiles = packed.shape[0]
    (out,) = run(
        linear("linear", rows, tiles, inputs, arithmetic, bias=True),
        words(x[:rows], arithmetic, stride(inputs, arithmetic) - inputs // arithmetic.word),
        packed.reshape(tiles, -1),
        bias,
    )
    expected = rounded(x[:rows], arithmetic) @ rounded(w, arithmetic).T + bias[:outputs]
    np.testing.assert_allclose(out[:, :outputs], expected, atol=TOLERANCE[arithmetic.element] * 20)
    (alone,) = run(
        linear("linear", 1, tiles, inputs, arithmetic, bias=True),
        words(x[rows - 1 : rows], arithmetic, stride(inputs, arithmetic) - inputs // arithmetic.word),
        packed.reshape(tiles, -1),
        bias,
    )
    np.testing.assert_array_equal(alone[0], out[-1])


def test_a_product_shared_by_threads_is_the_same(run: Run) -> None:
    # 50 tiles, two at a time, for 7, 14 and 25 workgroups: shares get smaller, and the last ones may be empty.
    rows, inputs, tiles, arithmetic = 9, 32, 50, Singles("f32", 16)
    x, unpacked = random(rows, inputs), random(tiles * 16, inputs, seed=1)
    w = pack(unpacked, 1).reshape(tiles, -1)
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
        pytest.param(Singles("f32", 16), 25, (25, 24, 17, 3, 1), id="f32"),
        pytest.param(Widened(16), 14, (14, 13, 9, 2), id="bf16-masked"),
        pytest.param(Widened(4), 11, (11, 10, 9, 2), id="bf16-widened"),
    ],
)
@pytest.mark.parametrize("kind", ["linear", "gated"])
def test_live_rows_are_those_of_a_product_of_all(
    run: Run, arithmetic: Arithmetic, rows: int, lives: tuple[int, ...], kind: str
) -> None:
    inputs, tiles = 32, 5
    x, w = (
        random(rows, inputs),
        pack(random(2 * tiles * 16, inputs, seed=1).astype(NUMPY[arithmetic.element]), arithmetic.k),
    )
    weights, width = w.reshape(2 * tiles, -1), tiles * 16

    def product(live: int | None) -> NDArray[Any]:
        given = [] if live is None else [np.array([live], np.int32)]
        if kind == "gated":
            text = gated("gated", rows, tiles, inputs, arithmetic, "silu", threads=2, live=live is not None)
        else:
            text = linear("linear", rows, 2 * tiles, inputs, arithmetic, bias=False, threads=2, live=live is not None)
        return run(text, words(x, arithmetic, 16), weights, *given)[0][:, :width]

    whole = product(None)
    for live in lives:
        np.testing.assert_array_equal(product(live)[:live], whole[:live])
    np.testing.assert_array_equal(product(rows + 1), whole)  # nothing is written behind the last row


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(run: Run, arithmetic: Arithmetic, activation: Activation) -> None:
    rows, inputs, ffn = 9, 64, 48
    x, w = random(rows, inputs), random(2 * ffn, inputs, seed=1) / np.float32(8)
    packed = pack(w.astype(NUMPY[arithmetic.element]), arithmetic.k)
    text = gated("gated", rows, ffn // 16, inputs, arithmetic, activation)
    padding = stride(inputs, arithmetic) - inputs // arithmetic.word
    (out,) = run(text, words(x, arithmetic, padding), packed.reshape(packed.shape[0], -1))
    both = rounded(x, arithmetic) @ rounded(w, arithmetic).T
    gate = both[:, :ffn]
    silu = gate / (1 + np.exp(-gate))
    gelu = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    expected = (silu if activation == "silu" else gelu) * both[:, ffn:]
    np.testing.assert_allclose(floats(out, ffn, arithmetic), expected, atol=TOLERANCE[arithmetic.element] * 8)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(
    "kind",
    [
        Norm(False, False, True),
        Norm(True, False, True),
        Norm(True, True, False),
        Norm(True, True, True),
        Norm(True, False, True, 0.22),
        Norm(True, True, False, 0.22),
    ],
    ids=str,
)
def test_norm(run: Run, arithmetic: Arithmetic, kind: Norm) -> None:
    x, delta, after, before = (random(6, 80), random(6, 80, seed=1), random(80, seed=2), random(80, seed=3))
    operands = [each for each, used in ((delta, kind.delta), (after, kind.after), (before, kind.before)) if used]
    *total, out = run(norm("norm", 6, 80, 1e-5, arithmetic, kind), x, *operands)

    def normed(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
        unit: NDArray[np.float32] = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
        return unit

    whole = x + kind.multiplier * (normed(delta, after) if kind.after else delta) if kind.delta else x
    if kind.delta:
        np.testing.assert_allclose(total[0], whole, atol=1e-6)
    expected = normed(whole, before) if kind.before else whole
    np.testing.assert_allclose(floats(out, 80, arithmetic), expected, atol=TOLERANCE[arithmetic.element] * 4, rtol=1e-2)


class Attended:
    """Some sequences in a cache: placed row by row with the kernel, and in plain float32 beside it."""

    def __init__(self, run: Run, arithmetic: Arithmetic, *, eps: float | None) -> None:
        self.run, self.arithmetic, self.eps = run, arithmetic, eps
        self.lengths = {1: 300, 2: 3}
        self.depth, self.queries, self.heads = 32, 4, 2
        self.capacity = 6 * POSITIONS
        self.norms = [random(self.depth, seed=8), random(self.depth, seed=9)]
        shape = (2, 2, 3, self.heads, self.capacity * self.depth)
        kind = NUMPY[arithmetic.element]
        self.cache = np.zeros(shape, kind)
        self.qkv = {
            slot: random(n, self.queries + 2 * self.heads, self.depth, seed=slot) for slot, n in self.lengths.items()
        }

    def heads_of(self, batch: int, tokens: int) -> Heads:
        return Heads(
            layers=2, slots=3, queries=self.queries, heads=self.heads, head_dim=self.depth,
            capacity=self.capacity, attended=self.capacity - POSITIONS, batch=batch, tokens=tokens, scale=0.5,
            rotated=self.depth,
        )  # fmt: skip

    def angles(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        angle = rows.reshape(-1, 1) * np.linspace(1.0, 0.01, self.depth // 2)
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def place(self, slots: list[int], rows: NDArray[np.int32]) -> NDArray[np.int32]:
        batch, tokens = rows.shape
        qkv = np.concatenate([self.qkv[slot][at % self.lengths[slot]] for slot, at in zip(slots, rows, strict=True)])
        kind = Place(self.heads_of(batch, tokens), self.arithmetic, self.eps or 0.0, "each" if self.eps else None)
        norms, layer = self.norms if self.eps is not None else [], np.array([1, 2], np.int32)
        operands = (*self.angles(rows), np.array(slots, np.int32), rows, layer, *norms, self.cache)
        q, cache = self.run(kind.function("place"), qkv.reshape(len(qkv), -1), *operands)
        self.cache = cache.view(self.cache.dtype)
        return q.reshape(batch * tokens, -1)

    def attend(
        self, q: NDArray[np.int32], slots: list[int], rows: NDArray[np.int32], **options: Any
    ) -> NDArray[np.float32]:
        kind = Attention(self.heads_of(*rows.shape), self.arithmetic, **options)
        operands = (q, np.array(slots, np.int32), rows, np.array([1, 2], np.int32), self.cache)
        if kind.split:
            (sums,) = self.run(kind.shared("shared"), *operands)
            (out,) = self.run(kind.joined("joined"), sums, rows)
        else:
            (out,) = self.run(kind.whole("whole"), *operands)
        return floats(out, self.queries * self.depth, self.arithmetic)

    def expected(self, slot: int, row: int, window: int = 0, cap: float = 0.0) -> NDArray[np.float32]:
        rows = np.arange(row + 1, dtype=np.int32)
        cos, sin = (x[:, None, :] for x in self.angles(rows))
        half = self.depth // 2

        def turned(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
            if self.eps is not None:
                x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * weight
            a, b = x[..., :half], x[..., half:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        qkv = self.qkv[slot][: row + 1]
        q = turned(qkv[:, : self.queries], self.norms[0])[row] * 0.5
        k = rounded(turned(qkv[:, self.queries : self.queries + self.heads], self.norms[1]), self.arithmetic)
        v = rounded(qkv[:, self.queries + self.heads :], self.arithmetic)
        out = []
        for head in range(self.queries):
            score = k[:, head // 2] @ q[head]
            score = cap * np.tanh(score / cap) if cap else score
            score[: max(0, row + 1 - window) if window else 0] = -np.inf
            weight = np.exp(score - score.max())
            out.append(weight @ v[:, head // 2] / weight.sum())
        return np.concatenate(out)


@pytest.mark.parametrize("arithmetic", [ARITHMETICS[0], *ARITHMETICS[-2:]])
@pytest.mark.parametrize(
    ("eps", "options"),
    [(None, {}), (1e-6, {}), (None, {"window": 70}), (None, {"cap": 2.0})],
    ids=["plain", "head-norms", "window", "cap"],
)
def test_attention(run: Run, arithmetic: Arithmetic, eps: float | None, options: dict[str, Any]) -> None:
    held = Attended(run, arithmetic, eps=eps)
    prompt = np.arange(300, dtype=np.int32)[None]
    held.place([2], np.arange(3, dtype=np.int32)[None])
    q = held.place([1], prompt)
    whole = held.attend(q, [1], prompt, **options)
    atol = TOLERANCE[arithmetic.element] * 4
    for row in (0, 31, 32, 63, 64, 149, 254, 255, 256, 257, 299):
        np.testing.assert_allclose(whole[row], held.expected(1, row, **options), atol=atol)

    # One row of each of two slots, and a row that is nobody's between them, in another order.
    rows = np.array([[2], [held.capacity - 1], [299]], np.int32)
    slots = [2, 1, 1]
    mixed = held.attend(held.place(slots, rows), slots, rows, **options)
    np.testing.assert_allclose(mixed[0], held.expected(2, 2, **options), atol=atol)
    np.testing.assert_array_equal(mixed[2], whole[299])

    # Three threads share the contexts of two heads: more spans than workgroups, so that some do several.
    rows, slots = np.concatenate([rows, *[rows[2:]] * 5]), slots + [1] * 5
    q = held.place(slots, rows)
    shared = held.attend(q, slots, rows, threads=3, **options)
    np.testing.assert_array_equal(shared[0], mixed[0])
    np.testing.assert_array_equal(shared[2:], np.repeat(mixed[2:], 6, axis=0))


def test_rows_of_nobody_widen_no_window(run: Run) -> None:
    """A chunk that is filled up with rows of nobody reads no more of its slot than the window of its own rows."""
    held = Attended(run, Singles("f32", 16), eps=None)
    held.place([1], np.arange(300, dtype=np.int32)[None])
    chunk = np.array([[*range(290, 300), *[held.capacity - 1] * 6]], np.int32)
    q = held.place([1], chunk)
    # Of the first lanes: a value that is read spoils every row, whatever its weight.
    held.cache[..., : 100 * LANES] = np.nan
    out = held.attend(q, [1], chunk, window=70)
    np.testing.assert_allclose(out[9], held.expected(1, 299, 70), atol=TOLERANCE[held.arithmetic.element] * 4)


def test_arithmetic_by_cpu_and_type() -> None:
    assert arithmetic_of({"avx512f", "avx512bf16", "sse4a"}, "bfloat16") == Pairs()
    assert arithmetic_of({"avx512f", "avx512bf16"}, "bfloat16") == Widened(16)
    assert arithmetic_of({"avx512f", "avx512bf16"}, "float32") == Singles("f32", 16)
    assert arithmetic_of({"avx512f", "sse4a"}, "bfloat16") == Widened(16)
    assert arithmetic_of({"avx2"}, "float16") == Singles("f16", 4)
    assert arithmetic_of(set(), "bfloat16") == Widened(4)


def test_pack() -> None:
    packed = pack(np.arange(34).reshape(17, 2), 2)
    assert packed.shape == (2, 1, 16, 2)
    assert packed[0, 0, 3].tolist() == [6, 7]
    assert packed[1, 0].tolist() == [[32, 33], *[[0, 0]] * 15]


def test_a_products_work_is_shared_so_that_threads_end_together() -> None:
    assert workgroups(56, 2) == SHARES * 2  # one at a time for each of two threads
    assert workgroups(5, 2) == 5  # no more than there is work for
