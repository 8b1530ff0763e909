"""A checkpoint is inspected by its description and the headers of its files."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from tests.checkpoints import make_checkpoint
from tests.vision_checkpoints import make_vision_description
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.json_files import CheckpointError
from workers.inspection.inspection import Inspection
from workers.inspection.served_tasks import ServedTasks
from workers.inspection.tensor_map import StoredTensor

BOTH = ("iree", "mlx")


def inspect(path: Path) -> Inspection:
    return Inspection.of(worker_spec(Settings(), ChosenModel("model", path)), BOTH)


def by_name(found: Inspection) -> Mapping[str, StoredTensor]:
    assert found.tensors is not None
    return {each.name: each for each in found.tensors.tensors}


def modes(found: Inspection) -> dict[str, str]:
    return {each.backend: each.mode for each in found.backends}


DECODERS: Mapping[str, tuple[Mapping[str, Any], ServedTasks]] = {
    "generates": ({}, ServedTasks(chat=True, completions=True, embedding_width=64, rerank="embeddings")),
    "labels": (
        {"architectures": ["LlamaForSequenceClassification"], "num_labels": 3},
        ServedTasks(labels=3, classifies=True),
    ),
    "one-label": (
        {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "relevant"}},
        ServedTasks(labels=1, rerank="decoder"),
    ),
    "tokens": ({"classifier_from_token": ["a"]}, ServedTasks(labels=1, rerank="decoder")),
}


@pytest.mark.parametrize("case", sorted(DECODERS))
def test_a_decoder_is_served_for_what_its_files_state(tmp_path: Path, case: str) -> None:
    change, expected = DECODERS[case]
    path = make_checkpoint(tmp_path)
    edit(path, change)
    tasks = ServedTasks.of(path, ModelConfig.from_dir(path))
    assert tasks == expected
    assert ("/v1/messages" in tasks.endpoints, "/v1/rerank" in tasks.endpoints) == (tasks.chat, tasks.labels < 2)


def edit(path: Path, change: Mapping[str, Any]) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def edit_tensors(path: Path, change: Mapping[str, Any]) -> None:
    """Add tensors, and remove those whose value is None."""
    file = path / "model.safetensors"
    tensors = {**load_file(file), **change}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


def test_a_checkpoint_is_described(tmp_path: Path) -> None:
    found = inspect(make_checkpoint(tmp_path))
    about = found.description
    assert found.served
    assert modes(found) == {"iree": "batched", "mlx": "batched"}
    assert (about.family, about.architecture, about.layers) == ("llama", "LlamaForCausalLM", {"attention": 2})
    assert (about.heads, about.kv_heads, about.head_dim, about.context) == (4, 2, 16, 2048)
    assert (about.tokenizer, about.chat_template, about.format, about.quantization) == ("BPE", True, "safetensors", "")
    stored = load_file(tmp_path / "model.safetensors")
    assert about.parameters == sum(tensor.size for tensor in stored.values()), "a tied matrix counts once"
    assert about.vocabulary == stored["model.embed_tokens.weight"].shape[0]


def test_each_tensor_has_its_place(tmp_path: Path) -> None:
    found = inspect(make_checkpoint(tmp_path))
    tensors = by_name(found)
    assert tensors["model.embed_tokens.weight"].to == ("embedding", "head")
    key = tensors["model.layers.1.self_attn.k_proj.weight"]
    assert (key.to, key.use, key.dtype, key.shape) == (("1.qkv",), "read", "F32", (32, 64))
    assert found.tensors is not None
    assert ("qkv", "F32", 6) in found.tensors.groups()
    assert found.tensors.counts() == {"read": len(load_file(tmp_path / "model.safetensors"))}


def test_images_of_a_model_with_a_tower(tmp_path: Path) -> None:
    path = make_vision_description(tmp_path / "qwen", "qwen3_vl")
    vision = inspect(path).vision
    assert (vision.image_tokens, vision.problem) == (121, "")
    assert vision.tower.startswith("3 layers, 2 of them merged for the language model's first layers; hidden size 32;")
    assert inspect(make_checkpoint(tmp_path / "llama")).vision.problem == "the model has no vision tower"
    settings = path / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"resample": 9}))
    found = inspect(path)
    assert "resample: 9 is not supported" in found.vision.problem
    assert found.tensors is not None
    missing = {each.name: each.to for each in found.tensors.tensors if each.use == "missing"}
    assert missing["blocks.1.attn.qkv.bias"] == ("1.vision q bias", "1.vision k bias", "1.vision v bias")
    assert missing["deepstack_merger_list.0.norm.weight"] == ("0.vision taps norm",)


def test_memory_is_that_of_each_precision(tmp_path: Path) -> None:
    found = inspect(make_checkpoint(tmp_path))
    assert found.memory is not None
    assert found.memory.weights["none"] == 4 * found.description.parameters
    assert found.memory.kv["auto"] == {tokens: tokens * 2 * 2 * 2 * 16 * 4 for tokens in (1000, 2048)}
    assert found.memory.kv["int8"][1000] == 1000 * 2 * 2 * 2 * (16 + 4)
    assert found.memory.state == 0


def test_ignored_tensors_have_a_reason(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    rotary = "model.layers.0.self_attn.rotary_emb.inv_freq"
    head = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    edit_tensors(path, {rotary: np.ones(8, np.float64), "lm_head.weight": head})
    found = inspect(path)
    tensors = by_name(found)
    assert found.served
    assert (tensors[rotary].use, tensors[rotary].why) == ("ignored", "follows from config.json")
    assert "a copy of the embeddings" in tensors["lm_head.weight"].why


NORM = "model.layers.0.input_layernorm.weight"
WRONG: Mapping[str, tuple[Mapping[str, Any], str, str, str]] = {
    "an unknown one": ({"model.layers.0.extra": np.ones(4, np.float32)}, "model.layers.0.extra", "refused", "not part"),
    "a bias too many": (
        {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)},
        "model.layers.0.self_attn.q_proj.bias",
        "refused",
        "not part",
    ),
    "a missing one": ({NORM: None}, NORM, "missing", "missing"),
    "another shape": ({NORM: np.ones(63, np.float32)}, NORM, "refused", r"the shape \(63,\), config.json says"),
    "another type": ({NORM: np.ones(64, np.int8)}, NORM, "refused", "type I8 is not supported"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_wrong_tensor_refuses_the_checkpoint_by_name(tmp_path: Path, case: str) -> None:
    change, name, use, words = WRONG[case]
    path = make_checkpoint(tmp_path)
    edit_tensors(path, change)
    found = inspect(path)
    assert not found.served
    assert found.memory is None
    assert by_name(found)[name].use == use
    assert all(name in each.problem for each in found.backends)
    assert re.search(words, by_name(found)[name].why)


def test_parts_of_quantized_matrices_belong_to_them(tmp_path: Path) -> None:
    found = inspect(make_checkpoint(tmp_path, quantized_bits=4))
    tensors = by_name(found)
    assert {tensors[f"model.layers.0.mlp.down_proj.{part}"].to for part in ("weight", "scales", "biases")} == {
        ("0.down",)
    }
    assert found.description.quantization == "mlx, affine, 4 bits, groups of 32"
    assert found.memory is not None
    assert found.memory.weights["int8"] is None
    assert found.memory.weights["none"]


def test_gptq_is_refused_by_mlx_alone(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    edit(path, {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}})
    found = inspect(path)
    assert modes(found) == {"iree": "batched", "mlx": "refused"}
    refused = found.backends[1]
    assert "'gptq' is not supported by the MLX backend: take --backend iree" in refused.problem
    assert refused.document == "docs/operations/quantization.md#quantize-a-model"


def test_layers_of_a_hybrid_are_counted_by_kind(tmp_path: Path) -> None:
    found = inspect(make_checkpoint(tmp_path, "lfm2", layers=4))
    assert found.served
    assert sum(found.description.layers.values()) == 4
    assert {"attention", "short convolution"} == {*found.description.layers}
    assert found.memory is not None
    assert found.memory.state > 0


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_go_to_their_stack(tmp_path: Path, stacked: bool) -> None:
    found = inspect(make_checkpoint(tmp_path, "qwen3_moe", quantized_bits=4 if stacked else None))
    assert found.served, found.backends
    experts = [each for name, each in by_name(found).items() if "up_proj" in name and "layers.0" in name]
    assert {each.to for each in experts} == {("0.experts_gate_up",)}
    assert len(experts) == (3 if stacked else 6)
    assert "for each token" in found.description.experts


def test_a_gguf_file_is_inspected_by_its_own_names(tmp_path: Path) -> None:
    file = make_gguf(make_checkpoint(tmp_path / "model"), tmp_path / "model.gguf")
    found = inspect(file)
    assert modes(found) == {"iree": "batched", "mlx": "batched"}
    assert by_name(found)["blk.1.attn_k.weight"].to == ("1.qkv",)
    assert found.description.format.startswith("GGUF, ")
    assert found.description.tokenizer == "gpt2"


def test_a_family_that_only_mlx_lm_describes_runs_alone(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    edit(path, {"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"]})
    found = inspect(path)
    assert modes(found) == {"iree": "refused", "mlx": "alone"}
    assert found.backends[0].document == "docs/adding-a-model.md"
    assert found.backends[1].document == "docs/operations/models.md#models-that-run-alone"
    assert {each.to for each in by_name(found).values()} == {("mlx-lm",)}


def test_a_model_without_a_tower_that_projects_patches_is_described(tmp_path: Path) -> None:
    view = inspect(make_vision_description(tmp_path, "gemma4_unified")).vision
    assert view.tower == "patches are projected, without layers; hidden size 48; 1 patch a token"
    assert view.problem == ""


def test_an_unknown_family_is_refused_with_the_page_on_adding_one(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    edit(path, {"model_type": "nonsense", "architectures": ["NonsenseForCausalLM"]})
    found = inspect(path)
    assert modes(found) == {"iree": "refused", "mlx": "refused"}
    assert {each.document for each in found.backends} == {"docs/adding-a-model.md"}
    assert {each.use for each in by_name(found).values()} == {"refused"}
    assert (found.description.family, found.description.layers) == ("nonsense", {"not described": 2})


def problem_of(path: Path) -> str:
    """Why no backend serves a checkpoint."""
    try:
        found = inspect(path)
    except CheckpointError as error:
        return str(error)
    assert not found.served
    return found.backends[0].problem


FIELDS = ("architectures", "model_type", "num_hidden_layers", "hidden_size", "text_config", "quantization", "dtype")


@pytest.mark.parametrize("value", [None, -1, 1 << 70, "x", [], [None], {"bits": []}], ids=repr)
@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_field_refuses_the_checkpoint(tmp_path: Path, name: str, value: object) -> None:
    fields = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", name: value}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert "config.json" in problem_of(tmp_path)
