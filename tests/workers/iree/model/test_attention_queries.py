"""The queries by which prompts are scored, of models with norms of queries."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.architectures.parts import HeadNorm, full_layers
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.kernels.ir.arithmetic import Bf16Dot
from workers.iree.model.attention_queries import _QueryTap
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.plain_ops import _norm_heads
from workers.iree.model.stored_parameters import stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import PaddedAxis, WidthPadding

ROWS, HEADS, LANES = 3, 4, 12


@pytest.mark.parametrize(("head_norm", "kind"), [("each", "rms"), ("own", "layer"), ("all", "rms")], ids=str)
def test_queries_are_normed_as_those_of_the_model(
    tmp_path: Path, head_norm: HeadNorm, kind: Literal["rms", "layer"]
) -> None:
    config = replace(
        ModelConfig.from_dir(make_checkpoint(tmp_path)),
        heads=HEADS,
        head_dim=LANES,
        head_norm=head_norm,
        norm_kind=kind,
    )
    random = np.random.default_rng(3)
    queries = random.normal(1.0, 2.0, (ROWS, HEADS, LANES)).astype(np.float32)
    weight = random.normal(1.0, 0.5, LANES * (1 if head_norm == "each" else HEADS)).astype(np.float32)
    expected = np.asarray(_norm_heads(jnp.asarray(queries), jnp.asarray(weight), config))
    head = PaddedAxis.whole(LANES)
    queries, weight = head.pad(queries, 2), head.pad(weight, 0)
    ops = TiledOps("bfloat16", Bf16Dot(), padding=WidthPadding(head, head, (head,), None))
    normed = np.asarray(_QueryTap(ops)._normed(jnp.asarray(queries), jnp.asarray(weight), config, 0))
    np.testing.assert_allclose(normed[..., :LANES], expected, rtol=1e-5, atol=1e-5)
    assert not normed[..., LANES:].any()


@pytest.mark.parametrize(("family", "windows"), [("deepseek_v2", True), ("gemma4_text", True), ("gemma4_text", False)])
def test_queries_are_as_wide_as_the_keys_of_their_layer(tmp_path: Path, family: str, windows: bool) -> None:
    """Layers may differ in width, and values may be narrower than keys."""
    path, ops = make_checkpoint(tmp_path, family, layers=6, hidden=64), TiledOps("bfloat16", Bf16Dot())
    config = ModelConfig.from_dir(path)
    if not windows:
        config = replace(config, plan=tuple(replace(layer, window=None) for layer in config.plan))
    stored = stored_parameters(config, ops, open_weights(path), "none")
    plan = GraphPlan(config, ops, CacheLayout.of(config, 4, 64, 16), stored, (1, 2, 4), (32, 64), queries=True)
    graph = plan._queries("queries_4", 4)
    weights = {each.name: jax.ShapeDtypeStruct(each.shape, each.dtype) for each in stored}
    found = jax.eval_shape(graph.function, *graph.inputs, weights)
    full, caches = full_layers(config.plan), len(config.kv_groups)
    assert [each.shape for each in found[:-caches]] == [
        (4, config.heads, config.kv_shape(layer).key_width) for layer in full
    ]
    widths = {config.kv_shape(layer).key_width for layer in full}
    assert len(widths) == (2 if family == "gemma4_text" and not windows else 1)
