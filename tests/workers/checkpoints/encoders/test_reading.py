"""Descriptions of encoders from config.json, and their tensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import write_safetensors
from tests.workers.tiny_encoders import FIELDS, make_encoder
from workers.checkpoints.architectures.rope import Ntk
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.checkpoints.encoders.config import EncoderConfig, EncoderLayer
from workers.checkpoints.encoders.memory import estimate_encoder
from workers.checkpoints.encoders.reading import is_encoder, read_encoder
from workers.checkpoints.encoders.tensors import check_encoder_tensors, encoder_parameter_count, encoder_tensors

NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "vocab_size": 30528,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_inner": 3072,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "torch_dtype": "float32",
}
"""config.json of nomic-embed-text-v1.5, without the fields that no reader asks for."""
NEW = {
    "model_type": "new",
    "architectures": ["NewModel"],
    "vocab_size": 250048,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "max_position_embeddings": 8192,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "type_vocab_size": 1,
    "torch_dtype": "float16",
}
"""config.json of gte-multilingual-base."""


def read(path: Path, fields: dict[str, Any]) -> EncoderConfig:
    (path / "config.json").write_text(json.dumps(fields))
    return read_encoder(path)


def test_published_fields_of_nomic_bert(tmp_path: Path) -> None:
    config = read(tmp_path, NOMIC)
    assert (config.hidden_size, config.heads, config.ffn, config.head_dim) == (768, 12, 3072, 64)
    assert (config.gated, config.activation, config.qkv_bias, config.max_positions) == (True, "silu", False, 8192)
    assert config.plan == (EncoderLayer(0),) * 12
    assert config.ropes[0].theta == 1000
    assert encoder_parameter_count(config) == 136_731_648  # as transformers counts them
    scaled = read(tmp_path, {**NOMIC, "rotary_scaling_factor": 2})
    assert scaled.max_positions == 2048, "beyond these, frequencies depend on a text's length"


def test_published_fields_of_gte(tmp_path: Path) -> None:
    config = read(tmp_path, NEW)
    assert config.ropes[0].scaling == Ntk(8.0)
    frequencies, factor = config.ropes[0].frequencies(8192)
    plain = 160000.0 ** -(np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(frequencies, plain / 8 ** (2 / 64), rtol=1e-6)
    assert (factor, config.dtype, config.up_bias, config.down_bias) == (1.0, "float16", False, True)


def test_positions_of_roberta_begin_behind_that_of_padding(tmp_path: Path) -> None:
    config = read(tmp_path, {**FIELDS["xlm-roberta"], "model_type": "xlm-roberta"})
    assert (config.position_offset, config.table_positions, config.max_positions) == (2, 74, 72)
    assert config.choose_context(0) == config.choose_context(72) == 72
    with pytest.raises(CheckpointError, match=r"max_position_embeddings: is 72, less than the context of 73"):
        config.choose_context(73)


def test_layers_of_modernbert(tmp_path: Path) -> None:
    config = read(tmp_path, {**FIELDS["modernbert"], "model_type": "modernbert"})
    assert config.plan == (EncoderLayer(0), EncoderLayer(1, 5), EncoderLayer(0))
    assert [rope.theta for rope in config.ropes] == [160000.0, 10000.0]
    newer = {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        },
    }
    config = read(tmp_path, {**FIELDS["modernbert"], "model_type": "modernbert", **newer})
    assert [layer.window for layer in config.plan] == [5, None, 5]
    assert [rope.theta for rope in config.ropes] == [5000.0, 700.0]


GEMMA = {**FIELDS["gemma3_text"], "model_type": "gemma3_text"}
LLAMA = {**FIELDS["llama_bidirec"], "model_type": "llama_bidirec"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported"),
    "class": ({"architectures": ["BertForTokenClassification"]}, "architectures: 'BertForTokenClassification'"),
    "decoder": ({"is_decoder": True}, "is_decoder: True is not supported"),
    "heads": ({"num_attention_heads": 5}, "num_attention_heads: 5 heads do not divide a hidden size of 32"),
    "labels": ({"architectures": ["BertForSequenceClassification"], "id2label": {}}, "id2label: is not an object"),
    "quantized": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: quantized encoders"),
    "relative-positions": ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key'"),
    "several-classes": ({"architectures": ["BertModel", "GteModel"]}, "architectures: .* is not a list of one class"),
    "type": ({"dtype": "int8"}, "dtype: 'int8' is not supported"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_not_supported_is_refused_by_its_field(tmp_path: Path, case: str) -> None:
    changes, error = REFUSED[case]
    with pytest.raises(CheckpointError, match=error):
        read(tmp_path, {**FIELDS["bert"], "model_type": "bert", **changes})


@pytest.mark.parametrize(
    ("fields", "changes", "error"),
    [
        (GEMMA, {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping: 30.0 is not supported"),
        (LLAMA, {"pooling": "last"}, "pooling: 'last' is not supported, only avg"),
        (LLAMA, {"architectures": ["LlamaBidirectionalForSequenceClassification"]}, "architectures: .* and no scores"),
        (LLAMA, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters: are not supported: encoders"),
        (NOMIC, {"activation_function": "gelu"}, "activation_function: 'gelu' is not supported"),
        (NOMIC, {"moe_every_n_layers": 2}, "moe_every_n_layers: 2 is not supported"),
        (NOMIC, {"prenorm": True}, "prenorm: True is not supported"),
        (NOMIC, {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction: 0.5"),
        (NEW, {"layer_norm_type": "rms_norm"}, "layer_norm_type: 'rms_norm'"),
        (NEW, {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 1.0}}, "rope_scaling.mixed_b: is not"),
        ({"model_type": "mpnet"}, {}, "model_type: 'mpnet' is no encoder; those are bert, "),
    ],
)
def test_other_families_refuse_what_they_do_not_read(
    tmp_path: Path, fields: dict[str, Any], changes: dict[str, Any], error: str
) -> None:
    with pytest.raises(CheckpointError, match=error):
        read(tmp_path, {**fields, **changes})


def test_tensors_of_a_head_are_left_out_and_others_refused(tmp_path: Path) -> None:
    path = make_encoder(tmp_path, "bert", labels=2)
    config, weights = read_encoder(path), open_weights(path)
    assert (config.labels, config.architecture) == (2, "BertForSequenceClassification")
    check_encoder_tensors(weights, config, path)
    values = {name: weights[name] for name in weights}
    values["bert.embeddings.position_ids"] = np.arange(72)
    write_safetensors(path / "model.safetensors", values)
    check_encoder_tensors(open_weights(path), config, path)
    values["bert.encoder.layer.2.output.dense.weight"] = np.zeros((2, 2), np.float32)
    write_safetensors(path / "model.safetensors", values)
    with pytest.raises(
        CheckpointError, match=r"bert\.encoder\.layer\.2\.output\.dense\.weight: the tensor is not part"
    ):
        check_encoder_tensors(open_weights(path), config, path)


def test_gates_come_first_whatever_the_checkpoint_has(tmp_path: Path) -> None:
    config = read(tmp_path, {**FIELDS["gte"], "model_type": "gte"})
    (up,) = (tensor for tensor in encoder_tensors(config) if tensor.name == "0.up")
    assert up.orders[0] is not None
    np.testing.assert_array_equal(up.orders[0].rows(), [*range(48, 96), *range(48)])


def test_memory_is_estimated_by_precision(tmp_path: Path) -> None:
    config = read(tmp_path, NOMIC)
    count = encoder_parameter_count(config)
    assert 4 * count < estimate_encoder(config, "auto", "none") < 4.1 * count
    assert 2 * count < estimate_encoder(config, "bfloat16", "none") < 2.1 * count
    assert estimate_encoder(config, "bfloat16", "int4") < estimate_encoder(config, "bfloat16", "int8") < 2 * count


def test_families_are_found_by_their_model_type(tmp_path: Path) -> None:
    assert not is_encoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert not is_encoder(tmp_path)
    assert is_encoder(make_encoder(tmp_path, "bert"))
