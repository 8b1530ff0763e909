"""The queries by which prompts are scored, of models with norms of queries."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.architectures.parts import HeadNorm
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.ir.arithmetic import Bf16Dot
from workers.iree.model.attention_queries import _QueryTap
from workers.iree.model.plain_ops import _norm_heads
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
