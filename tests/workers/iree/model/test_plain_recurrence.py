"""The operations of recurrent layers in plain StableHLO, beside the formulas in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import GatedDelta, Mamba2
from workers.iree.model.ops import MambaWeights, Recurrence, StepRows, Taps
from workers.iree.model.plain_ops import PlainOps

SIZES = GatedDelta(key_heads=2, value_heads=4, key_dim=8, value_dim=4, taps=3)
OFFSET, ATTENDED, ROWS, THERE = 5, 64, 6, 4
"""The layer's place in a state, and rows of which the first are no padding."""
RANDOM = np.random.default_rng(0)
OPS = PlainOps("float32")


def recurrence(states: NDArray[np.float32]) -> Recurrence:
    return Recurrence(jnp.asarray(states), OFFSET, ATTENDED)


def step(slot: int, first: int, rows: int, there: int) -> StepRows:
    at = np.where(np.arange(rows) < there, first + np.arange(rows), ATTENDED)
    return StepRows(jnp.asarray([slot]), jnp.asarray(at[None], jnp.int32))


def some(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def test_convolution_of_rows_and_of_one_after_the_other() -> None:
    x, taps, states = some(ROWS, 3 * 8), some(3, 8), some(2, OFFSET + 16 + 3)
    out, after = OPS.convolution(
        jnp.asarray(x), Taps(jnp.asarray(taps)), recurrence(states), step(1, 0, ROWS, THERE), gated=True
    )
    inputs = np.concatenate([states[1, OFFSET : OFFSET + 16].reshape(2, 8), x[:, :8] * x[:, 16:]])
    expected = [x[at, 8:16] * (inputs[at : at + 3] * taps).sum(0) for at in range(THERE)]
    np.testing.assert_allclose(np.asarray(out)[:THERE], expected, atol=1e-5)
    whole = states.copy()
    whole[1, OFFSET : OFFSET + 16] = inputs[THERE : THERE + 2].reshape(-1)
    np.testing.assert_allclose(np.asarray(after), whole, atol=1e-6)
    one = states
    for at in range(THERE):
        row, one = OPS.convolution(
            jnp.asarray(x[at : at + 1]), Taps(jnp.asarray(taps)), recurrence(one), step(1, at, 1, 1), gated=True
        )
        np.testing.assert_allclose(row[0], expected[at], atol=1e-5)
    np.testing.assert_allclose(np.asarray(one), whole, atol=1e-6)


def test_gated_delta_rule_of_some_rows() -> None:
    x, gates, states = some(ROWS, SIZES.channels), some(ROWS, 8), some(2, OFFSET + SIZES.state_values)
    decay, bias = some(4), some(4)
    run = jax.jit(lambda states: OPS.gated_delta(
        jnp.asarray(x), jnp.asarray(gates), (jnp.asarray(decay), jnp.asarray(bias)), SIZES,
        Recurrence(states, OFFSET, ATTENDED), step(0, 0, ROWS, THERE),
    ))  # fmt: skip
    out, after = run(jnp.asarray(states))
    first = OFFSET + 2 * SIZES.channels
    matrices = states[0, first:].reshape(4, 8, 4).copy()
    for row in range(THERE):
        q, k = (x[row, at : at + 16].reshape(2, 8) for at in (0, 16))
        q, k = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
        for head in range(4):
            matrix, query, key = matrices[head], q[head // 2] / 8**0.5, k[head // 2]
            value = x[row, 32 + 4 * head : 36 + 4 * head]
            beta = 1 / (1 + np.exp(-gates[row, head]))
            matrix *= np.exp(-np.exp(decay[head]) * np.log1p(np.exp(gates[row, 4 + head] + bias[head])))
            matrix += np.outer(key, (value - key @ matrix) * beta)
            np.testing.assert_allclose(np.asarray(out)[row, 4 * head : 4 * head + 4], query @ matrix, atol=1e-5)
    whole = states.copy()
    whole[0, first:] = matrices.reshape(-1)
    np.testing.assert_allclose(np.asarray(after), whole, atol=1e-5)


def test_mamba_of_some_rows() -> None:
    sizes = Mamba2(heads=4, head_dim=2, groups=2, state=3, taps=3, step_limit=(0.3, 1.5))
    x, projected = some(ROWS, sizes.channels), some(ROWS, sizes.projected)
    states, (decay, bias, skip) = some(2, OFFSET + sizes.state_values), some(3, 4)
    run = jax.jit(lambda states: OPS.selective_state(
        jnp.asarray(x), jnp.asarray(projected), MambaWeights(*map(jnp.asarray, (decay, bias, skip))), sizes,
        Recurrence(states, OFFSET, ATTENDED), step(0, 0, ROWS, THERE),
    ))  # fmt: skip
    out, after = run(jnp.asarray(states))
    first = OFFSET + 2 * sizes.channels
    matrices = states[0, first:].reshape(4, 3, 2).copy()
    for row in range(THERE):
        for head in range(4):
            time = np.clip(np.log1p(np.exp(projected[row, -4 + head] + bias[head])), 0.3, 1.5)
            lanes, (b, c) = slice(2 * head, 2 * head + 2), x[row, 8:].reshape(2, 2, 3)[:, head // 2]
            matrices[head] = matrices[head] * np.exp(-np.exp(decay[head]) * time) + np.outer(b, x[row, lanes] * time)
            gate = projected[row, lanes] / (1 + np.exp(-projected[row, lanes]))
            expected = (c @ matrices[head] + skip[head] * x[row, lanes]) * gate
            np.testing.assert_allclose(np.asarray(out)[row, lanes], expected, atol=1e-5)
    whole = states.copy()
    whole[0, first:] = matrices.reshape(-1)
    np.testing.assert_allclose(np.asarray(after), whole, atol=1e-5)
