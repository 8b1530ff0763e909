"""The kernels that the operations of a CPU collect, by name."""

import jax
import jax.numpy as jnp
import pytest

from workers.iree.kernels.ir.arithmetic import Bf16Dot
from workers.iree.model.tiled_ops import TiledOps

X, WEIGHT = jax.ShapeDtypeStruct((4, 64), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.float32)


def trace_norm(ops: TiledOps, eps: float) -> None:
    jax.eval_shape(lambda x, weight: ops.norm(x, None, None, weight, eps), X, WEIGHT)


def test_a_kernel_that_is_called_twice_is_collected_once() -> None:
    ops = TiledOps("bfloat16", Bf16Dot())
    trace_norm(ops, 1e-5)
    trace_norm(ops, 1e-5)
    assert set(ops.bodies) == {"baton_norm_4_64_001"}


def test_a_kernel_is_written_once_for_equal_arguments() -> None:
    ops, written = TiledOps("bfloat16", Bf16Dot()), list[tuple[int, ...]]()

    def write(name: str, *sizes: int) -> str:
        written.append(sizes)
        return name

    for sizes in ((1, 2), (1, 2), (1, 3)):
        ops.add_kernel("same_text", write, *sizes)
    assert written == [(1, 2), (1, 3)]
    assert ops.bodies == {"same_text": "same_text"}


def test_two_kernels_do_not_share_a_name() -> None:
    ops = TiledOps("bfloat16", Bf16Dot())
    trace_norm(ops, 1e-5)
    text = ops.bodies["baton_norm_4_64_001"]
    with pytest.raises(ValueError, match="baton_norm_4_64_001 names two kernels"):
        trace_norm(ops, 1e-6)
    assert ops.bodies == {"baton_norm_4_64_001": text}
