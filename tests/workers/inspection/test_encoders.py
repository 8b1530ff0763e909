"""Encoders before they are loaded: settings without effect, memory, and what `baton inspect` says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.tiny_encoders import make_encoder
from workers.checkpoints.encoders.config import EncoderConfig
from workers.errors import LoadRefused
from workers.inspection.inspection import Inspection
from workers.inspection.served_tasks import ServedTasks
from workers.process.backends import open_checkpoint, served_config
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe
from workers.process.startup.footprint import Footprint

pytest.importorskip("iree.runtime")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder"), "modernbert", labels=1)


def spec(path: Path, **changes: Any) -> WorkerSpec:
    return WorkerSpec("w0", "model", str(path), backend="iree", **changes)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"adapter": "/nothing"}, "adapter"),
        ({"draft_model": "/nothing"}, "draft_model"),
        ({"embeddings": True}, "embeddings"),
        ({"kv_dtype": "int8"}, "kv_dtype"),
        ({"window_cache": "ring"}, "window_cache"),
    ],
)
def test_settings_without_effect_are_refused(checkpoint: Path, changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(LoadRefused, match=rf"^{setting}: has no effect on modernbert, which is an encoder"):
        describe(spec(checkpoint, **changes))


def test_an_encoder_has_its_whole_context_and_no_cache(checkpoint: Path) -> None:
    described = describe(spec(checkpoint))
    assert (described.context, described.model_context, described.context_bound) == (72, 72, "")
    assert describe(spec(checkpoint, context=20)).context == 20
    footprint = Footprint.of(spec(checkpoint))
    assert (footprint.row_bytes, footprint.states, footprint.least, footprint.most) == (0, 0, 72, 72)
    assert footprint.weights > 4 * 20_000
    assert isinstance(served_config(spec(checkpoint)), EncoderConfig)
    assert open_checkpoint(spec(checkpoint))[0] == checkpoint


def test_inspection(checkpoint: Path) -> None:
    found = Inspection.of(spec(checkpoint), ["iree"])
    assert found.served
    assert found.description.architecture == "ModernBertForSequenceClassification"
    layers = {"attention in both directions": 2, "attention in both directions, window 11": 1}
    assert found.description.layers == layers
    assert found.tensors is not None
    assert found.tensors.counts() == {"read": 20, "ignored": 4}
    assert found.memory is not None
    assert found.memory.kv == {}
    sizes = [found.memory.weights[each] or 0 for each in ("none", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 0
    assert found.tasks == ServedTasks(labels=1, rerank="cross-encoder", classifies=True)
    assert found.tasks.endpoints == ("/v1/rerank", "/v1/score", "/v1/classify")


def test_an_encoder_without_a_head_is_served_for_embeddings(tmp_path: Path) -> None:
    path = make_encoder(tmp_path, "bert")
    tasks = Inspection.of(spec(path), ["iree"]).tasks
    assert tasks == ServedTasks(embedding_width=32, rerank="embeddings")
    assert tasks.endpoints == ("/v1/embeddings", "/api/embed", "/v1/rerank", "/v1/score")


def test_a_pooling_that_is_not_supported_is_refused(tmp_path: Path) -> None:
    path = make_encoder(tmp_path, "bert")
    modules = [{"type": f"sentence_transformers.{kind}", "path": ""} for kind in ("Transformer", "LogitScore")]
    (path / "modules.json").write_text(json.dumps(modules))
    found = Inspection.of(spec(path), ["iree"])
    assert (found.served, found.tasks) == (False, ServedTasks())
    assert "LogitScore is not supported for an encoder" in found.backends[0].problem


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert", num_hidden_layers=1)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    found = Inspection.of(spec(tmp_path), ["iree"])
    assert not found.served
    assert "encoder.layer.1.attention.output.LayerNorm.weight: the tensor is missing" in found.backends[0].problem
