"""The Llama architecture and its training in JAX: forward, weighted loss, AdamW, cosine schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.packing import Windows

Parameters = dict[str, Any]
"""Float32 arrays by their Hugging Face names. A linear weight is [out, in]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model, which config.json has too."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5
    max_positions: int = 2048


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The length, batches and optimizer settings of one stage of training."""

    steps: int
    batch: int
    length: int
    peak_rate: float
    seed: int
    warmup: int = 60
    decay: float = 0.05
    momentum: float = 0.95
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0

    @property
    def tokens(self) -> int:
        """The number of training tokens, padding included."""
        return self.steps * self.batch * self.length


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the checkpoint. The head is tied to the embedding."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, shape.hidden)}
    for layer in range(shape.layers):
        block = f"model.layers.{layer}."
        sizes |= {
            block + "input_layernorm.weight": (shape.hidden,),
            block + "self_attn.q_proj.weight": (q, shape.hidden),
            block + "self_attn.k_proj.weight": (kv, shape.hidden),
            block + "self_attn.v_proj.weight": (kv, shape.hidden),
            block + "self_attn.o_proj.weight": (shape.hidden, q),
            block + "post_attention_layernorm.weight": (shape.hidden,),
            block + "mlp.gate_proj.weight": (shape.ffn, shape.hidden),
            block + "mlp.up_proj.weight": (shape.ffn, shape.hidden),
            block + "mlp.down_proj.weight": (shape.hidden, shape.ffn),
        }
    return sizes | {"model.norm.weight": (shape.hidden,)}


def initialise(shape: Shape, seed: int) -> Parameters:
    """Initialise weights with variance 1/fan-in, smaller where they write to the residual, and norms with one."""
    rng = np.random.default_rng(seed)
    parameters: Parameters = {}
    for name, size in tensor_shapes(shape).items():
        if len(size) == 1:
            parameters[name] = jnp.ones(size, jnp.float32)
            continue
        scale = 0.02 if "embed" in name else size[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale /= (2 * shape.layers) ** 0.5
        parameters[name] = jnp.asarray(rng.normal(0.0, scale, size), jnp.float32)
    return parameters


def _norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def _attend(shape: Shape, weights: Callable[[str], jax.Array], x: jax.Array) -> jax.Array:
    batch, length, _ = x.shape
    groups = shape.heads // shape.kv_heads
    position = jnp.arange(length, dtype=jnp.float32)[:, None, None]
    half = shape.head_dim // 2
    angle = position * shape.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    q = _rotate((x @ weights("q_proj").T).reshape(batch, length, shape.heads, shape.head_dim), cos, sin)
    k = _rotate((x @ weights("k_proj").T).reshape(batch, length, shape.kv_heads, shape.head_dim), cos, sin)
    v = (x @ weights("v_proj").T).reshape(batch, length, shape.kv_heads, shape.head_dim)
    q = q.reshape(batch, length, shape.kv_heads, groups, shape.head_dim) * shape.head_dim**-0.5
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(batch, length, -1) @ weights("o_proj").T


def forward(shape: Shape, parameters: Parameters, tokens: jax.Array) -> jax.Array:
    """Compute float32 logits [B, T, vocabulary] of int32 tokens [B, T] at positions 0 to T-1, as LlamaForCausalLM."""
    embedding = parameters["model.embed_tokens.weight"]
    x = embedding[tokens]
    for layer in range(shape.layers):
        block = f"model.layers.{layer}."
        attention = partial(_weight, parameters, block + "self_attn.")
        x = x + _attend(shape, attention, _norm(x, parameters[block + "input_layernorm.weight"], shape.rms_eps))
        y = _norm(x, parameters[block + "post_attention_layernorm.weight"], shape.rms_eps)
        gate, up, down = (parameters[f"{block}mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        x = x + (jax.nn.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return _norm(x, parameters["model.norm.weight"], shape.rms_eps) @ embedding.T


def _weight(parameters: Parameters, prefix: str, name: str) -> jax.Array:
    return parameters[f"{prefix}{name}.weight"]


def loss(shape: Shape, parameters: Parameters, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the mean cross-entropy in nats of each token given those before it, weighted per token."""
    logits = forward(shape, parameters, tokens[:, :-1])
    target = tokens[:, 1:]
    chosen = jnp.take_along_axis(logits, target[..., None], -1)[..., 0]
    share = weights[:, 1:]
    return jnp.sum((jax.nn.logsumexp(logits, -1) - chosen) * share) / jnp.sum(share)


def learning_rate(plan: TrainingPlan, step: jax.Array | int) -> jax.Array:
    """Return the learning rate: linear warm-up, then half a cosine down to a hundredth of the peak."""
    progress = jnp.clip((step - plan.warmup) / max(1, plan.steps - plan.warmup), 0.0, 1.0)
    cosine = 0.01 + 0.99 * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return plan.peak_rate * jnp.minimum(1.0, (step + 1) / plan.warmup) * cosine


State = tuple[Parameters, Parameters, Parameters]
"""Parameters, first moments, and second moments of the tensors that AdamW updates."""


def by_muon(name: str) -> bool:
    """Return whether Muon updates a tensor: a matrix inside a layer. AdamW updates the embedding and the norms."""
    return name.endswith("_proj.weight")


def orthogonalise(matrix: jax.Array) -> jax.Array:
    """Move the singular values of a matrix near one with five Newton-Schulz steps (Jordan et al., Muon, 2024)."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2,))
def train_step(
    shape: Shape, plan: TrainingPlan, state: State, step: jax.Array, tokens: jax.Array, weights: jax.Array
) -> tuple[State, jax.Array]:
    """Run one step with gradient clipping. Returns the new state and the loss before the step.

    Muon updates matrices inside layers, scaled to AdamW's usual step (Liu et al., Muon is scalable, 2025), which here
    needs about half the tokens. AdamW updates the rest (Loshchilov and Hutter, 2019).
    """
    parameters, first, second = state
    value, gradient = jax.value_and_grad(loss, argnums=1)(shape, parameters, tokens, weights)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradient.values()))
    scale = jnp.minimum(1.0, plan.clip / (norm + 1e-6))
    rate, time = learning_rate(plan, step), step + 1.0
    new: State = ({}, {}, {})
    for name, weight in parameters.items():
        g = gradient[name] * scale
        if by_muon(name):
            m = plan.momentum * first[name] + g
            move = orthogonalise(g + plan.momentum * m) * 0.2 * max(weight.shape) ** 0.5 + plan.decay * weight
        else:
            m = plan.beta1 * first[name] + (1 - plan.beta1) * g
            v = plan.beta2 * second[name] + (1 - plan.beta2) * g * g
            move = (m / (1 - plan.beta1**time)) / (jnp.sqrt(v / (1 - plan.beta2**time)) + 1e-8)
            new[2][name] = v
        new[0][name], new[1][name] = weight - rate * move, m
    return new, value


def train(
    shape: Shape,
    plan: TrainingPlan,
    windows: Windows,
    report: Callable[[int, float], None],
    start: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Train from `start`, or else from weights of the plan's seed. Returns the float32 tensors by name.

    Calls `report(step, loss)` after every 50th step and the last one.

    Each row is used once, in order. Raises `ValueError` if `windows` has fewer than steps * batch rows.
    """
    if len(windows.tokens) < plan.steps * plan.batch:
        raise ValueError(f"windows: {len(windows.tokens)} rows, needed {plan.steps * plan.batch}")
    parameters = (
        initialise(shape, plan.seed) if start is None else {name: jnp.asarray(value) for name, value in start.items()}
    )
    first = {name: jnp.zeros_like(value) for name, value in parameters.items()}
    second = {name: jnp.zeros_like(value) for name, value in parameters.items() if not by_muon(name)}
    state: State = (parameters, first, second)
    for step in range(plan.steps):
        rows = slice(step * plan.batch, (step + 1) * plan.batch)
        state, value = train_step(shape, plan, state, jnp.float32(step), windows.tokens[rows], windows.weights[rows])
        if (step + 1) % 50 == 0 or step + 1 == plan.steps:
            report(step + 1, float(value))
    return {name: np.asarray(value) for name, value in state[0].items()}
