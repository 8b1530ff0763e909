"""Control flow and memory: what a body gives must fit what goes in. Nothing is compiled."""

import pytest

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import L2, Memory
from workers.iree.kernels.ir.mlir_types import F32, F32_VECTOR, I32, LANES, Type


@pytest.fixture
def code() -> Code:
    return Code()


@pytest.fixture
def memory(code: Code) -> Memory:
    return Memory(code, "%m", (4, 32), "f32")


def test_a_loop_carries_values_of_one_type(code: Code) -> None:
    start = code.floats(0.0)
    (total,) = code.loop(0, 8, [start], lambda _, sums: [sums[0] + 1.0])
    assert total.type == F32_VECTOR
    with pytest.raises(TypeError, match=r"loop: the body gives \(f32\), not \(vector<16xf32>\)"):
        code.loop(0, 8, [start], lambda _, sums: [sums[0].lane(0)])
    with pytest.raises(TypeError, match="a loop's end is i32, not index"):
        code.loop(0, code.constant(8, I32), [start], lambda _, sums: sums)


def test_a_while_loop_asks_for_a_bit(code: Code) -> None:
    zero = code.index(0)
    first, second = code.loop_while([zero], lambda v: (v[0] < 3, [v[0], v[0]]), lambda v: [v[0] + 1])
    assert (str(first.type), str(second.type)) == ("index", "index")
    with pytest.raises(TypeError, match="loop_while: the condition is index, not i1"):
        code.loop_while([zero], lambda v: (v[0], v), lambda v: v)


def test_both_branches_give_one_type(code: Code) -> None:
    bit, number = code.constant(1, I32).equals(1), code.constant(1.0, F32)
    assert code.choose(bit, lambda: number, lambda: number + 1.0).type == F32
    with pytest.raises(TypeError, match=r"choose: the body gives \(i32\), not \(f32\)"):
        code.choose(bit, lambda: number, lambda: code.constant(1, I32))
    with pytest.raises(TypeError, match="when: the condition is f32, not i1"):
        code.when(number, lambda: None)


def test_a_switch_asks_for_an_index(code: Code) -> None:
    with pytest.raises(TypeError, match=r"switch: the number is vector<16xf32>, not index"):
        code.switch(code.floats(1.0), {}, lambda: None)


def test_memory_belongs_to_one_kernel(memory: Memory) -> None:
    other = Code()
    with pytest.raises(TypeError, match=r"%m and .* belong to different kernels"):
        memory.load([0, other.index(0)])
    with pytest.raises(TypeError, match=r"%m and .* belong to different kernels"):
        memory.store(other.constant(1.0, F32), [0, 0])


def test_loads_have_the_type_of_the_memory(code: Code, memory: Memory) -> None:
    assert memory.load([0, 0]).type == F32
    assert memory.load_vector([0, 0]).type == F32_VECTOR
    assert memory.load_masked([0, 0], [True, False]).type == Type("f32", 2)
    memory.prefetch([0, 16], L2)
    assert code.lines[-1].endswith("read, locality<2>, data : memref<4x32xf32>")


def test_stores_and_indices_are_checked(code: Code, memory: Memory) -> None:
    with pytest.raises(TypeError, match="store: i32 into memref<4x32xf32>"):
        memory.store(code.constant(0, I32), [0, 0])
    with pytest.raises(TypeError, match="memref<4x32xf32> has 2 dimensions, not 1"):
        memory.load([0])
    with pytest.raises(TypeError, match="memref<4x32xf32> is indexed by i32, not index"):
        memory.load([code.constant(0, I32), 0])
    assert not code.lines


def test_a_kernel_returns_results_then_what_it_updates() -> None:
    kernel = Kernel("k", 3)
    x, kept = kernel.input("x", (2, LANES), "f32"), kernel.in_place("kept", (LANES,), "f32")
    scratch, out = kernel.scratch((LANES,), "f32"), kernel.output("out", (2, LANES), "f32")
    for memory in (scratch, out, kept):
        memory.store(x.load_vector([0, 0]), [0] * len(memory.shape))
    text = kernel.function()
    kinds = "tensor<2x16xf32>, tensor<16xf32>"
    assert f"func.func private @k(%i_x: tensor<2x16xf32>, %i_kept: tensor<16xf32>) -> ({kinds})" in text
    assert f"return %out#0, %out#2 : {kinds}" in text  # %out#1 is the scratch memory
    assert "memref.view %scratch[%s0_at][] : memref<64xi8> to memref<16xf32>" in text


def test_operands_have_names_of_their_own() -> None:
    kernel = Kernel("k", 1)
    kernel.input("x", (LANES,), "f32")
    kernel.output("x", (LANES,), "f32")
    with pytest.raises(ValueError, match="k has two operands %i_x"):
        kernel.input("x", (1,), "i32")
