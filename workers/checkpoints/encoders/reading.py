"""Reads config.json of an encoder, in the fields of each family."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.checkpoints.architectures.family import ACTIVATIONS
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.model_fields import read_dtype
from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.architectures.rope import Ntk, Rope
from workers.checkpoints.architectures.rope_fields import read_ropes
from workers.checkpoints.documents import find_document, read_fields
from workers.checkpoints.encoders.bidirectional import is_bidirectional, read_bidirectional
from workers.checkpoints.encoders.config import EncoderConfig, EncoderLayer
from workers.checkpoints.encoders.names import NAMES
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.json_files import CheckpointError

CLASSES = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
"""Endings of the classes whose hidden states or scores are served."""
CLASSIFIER = "ForSequenceClassification"
NOMIC_FIELDS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
    "rope_theta": "rotary_emb_base",
}
"""The names in which nomic-bert was published, for those of transformers."""
NOMIC_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}
"""The activation of the gates by the name of the whole GLU."""
NOMIC_FIXED: Mapping[str, tuple[Any, ...]] = {
    "prenorm": (False,),
    "use_rms_norm": (False,),
    "parallel_block": (False,),
    "causal": (False,),
    "rotary_emb_fraction": (1, 1.0),
    "rotary_emb_interleaved": (False,),
    "moe_every_n_layers": (0, -1),
}
"""Values of nomic-bert's fields that are supported, beside null."""
NEW_FIXED: Mapping[str, tuple[Any, ...]] = {
    "layer_norm_type": ("layer_norm",),
    "position_embedding_type": ("rope",),
    "logn_attention_scale": (False,),
    "pack_qkv": (True,),
}
BERT_FIXED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}


def is_encoder(path: Path) -> bool:
    """Return whether a checkpoint is of a family of encoders. Raises `CheckpointError` for a config.json that cannot be
    read."""
    if gguf_path(path) is not None:
        return False
    found = find_document(path, "config.json") or {}
    family = found.get("model_type")
    return isinstance(family, str) and family in NAMES and is_bidirectional(found, family)


def read_encoder(path: Path) -> EncoderConfig:
    """Read the description of a directory in Hugging Face layout. Raises `CheckpointError` for another family, and for
    what is not supported."""
    fields = read_fields(path)
    family = fields.get("model_type")
    if not isinstance(family, str) or family not in NAMES:
        raise fields.error("model_type", f"{family!r} is no encoder; those are {', '.join(sorted(NAMES))}")
    for name in ("quantization_config", "quantization"):
        if fields.get(name) is not None:
            raise fields.error(name, "quantized encoders are not supported: take the model as it was trained")
    architecture = _architecture(fields)
    config = _READERS[family](fields, family)
    if not config.lanes and config.hidden_size % config.heads:
        problem = f"{config.heads} heads do not divide a hidden size of {config.hidden_size}"
        raise fields.error("num_attention_heads", problem)
    labels = _labels(fields) if architecture.endswith(CLASSIFIER) else 0
    return replace(config, architecture=architecture, labels=labels)


def served_encoder(path: Path, runs: bool) -> EncoderConfig:
    """Read the description of an encoder, for a backend that `runs` encoders. Raises `CheckpointError`."""
    if not runs:
        problem = "the backend has no encoders: take --backend iree or mlx"
        raise CheckpointError(path / "config.json", "model_type", problem)
    return read_encoder(path)


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if names is None:
        return ""
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.error("architectures", f"{names!r} is not a list of one class")
    if not names[0].endswith(CLASSES):
        ends = ", ".join(f"*{each}" for each in CLASSES)
        raise fields.error("architectures", f"{names[0]!r} is not supported: encoders are {ends}")
    return names[0]


def _labels(fields: Fields) -> int:
    """Read the number of scores, as transformers does: from the labels' names, or 2."""
    names = fields.get("id2label")
    if names is None:
        return fields.integer("num_labels", 2, MAX_PARTS)
    if not isinstance(names, dict) or not 0 < len(names) <= MAX_PARTS:
        raise fields.error("id2label", f"is not an object of 1 to {MAX_PARTS} labels")
    return len(names)


def _sizes(fields: Fields, family: str) -> dict[str, Any]:
    """Read the fields that all families have."""
    return {
        "family": family,
        "architecture": "",
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": fields.integer("hidden_size"),
        "ffn": fields.integer("intermediate_size"),
        "heads": fields.integer("num_attention_heads", most=MAX_PARTS),
        "dtype": read_dtype(fields),
    }


def _layers(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", most=MAX_PARTS)


def _activation(fields: Fields, name: str, default: str, names: Mapping[str, str] | None = None) -> Activation:
    value = fields.get(name, default)
    value = (names or {}).get(value, value) if isinstance(value, str) else value
    if not isinstance(value, str) or value not in ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh"):
        raise fields.error(name, f"{value!r} is not supported, only gelu, gelu_new and silu")
    return ACTIVATIONS[value]


def _check_fixed(fields: Fields, supported: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in supported.items():
        value = fields.get(name)
        if value is not None and value not in values:
            raise fields.error(name, f"{value!r} is not supported, only {values[0]!r}")


def _types(fields: Fields, default: int) -> int:
    """Read the number of segments, which may be 0."""
    return 0 if fields.get("type_vocab_size", default) == 0 else fields.integer("type_vocab_size", default)


def _bert(fields: Fields, family: str) -> EncoderConfig:
    _check_fixed(fields, BERT_FIXED)
    roberta = family != "bert"
    positions, offset = fields.integer("max_position_embeddings"), 0
    if roberta:  # positions begin behind that of padding
        padding = fields.get("pad_token_id", 1)
        if not isinstance(padding, int) or isinstance(padding, bool) or not 0 <= padding < positions - 1:
            raise fields.error("pad_token_id", f"{padding!r} leaves none of {positions} positions")
        offset = padding + 1
    return EncoderConfig(
        **_sizes(fields, family),
        plan=(EncoderLayer(),) * _layers(fields),
        activation=_activation(fields, "hidden_act", "gelu"),
        eps=fields.number("layer_norm_eps", 1e-12),
        table_positions=positions,
        position_offset=offset,
        max_positions=positions - offset,
        token_types=_types(fields, 2),
    )


def _modernbert(fields: Fields, family: str) -> EncoderConfig:
    layers = _layers(fields)
    sizes = _sizes(fields, family)
    kinds = fields.get("layer_types")
    if kinds is None:
        every = fields.integer("global_attn_every_n_layers", 3, MAX_PARTS)
        kinds = ["sliding_attention" if number % every else "full_attention" for number in range(layers)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise fields.error("layer_types", f"is not a list of {layers}, each {known[0]} or {known[1]}")
    window = fields.integer("local_attention", 128) // 2
    named = Fields(fields.file, _with_thetas(fields))
    ropes = read_ropes(named, sizes["hidden_size"] // sizes["heads"], local="local_rope_theta", partial=False)
    local, everywhere = EncoderLayer(len(ropes) - 1, window), EncoderLayer(0)
    biased = fields.flag("attention_bias", False)
    mlp_bias = fields.flag("mlp_bias", False)
    return EncoderConfig(
        **sizes,
        plan=tuple(local if kind == known[1] else everywhere for kind in kinds),
        ropes=ropes,
        activation=_activation(fields, "hidden_activation", "gelu"),
        gated=True,
        pre_norm=True,
        eps=fields.number("norm_eps", 1e-5),
        norm_bias=fields.flag("norm_bias", False),
        qkv_bias=biased,
        attention_out_bias=biased,
        up_bias=mlp_bias,
        down_bias=mlp_bias,
        max_positions=fields.integer("max_position_embeddings", 8192),
    )


def _with_thetas(fields: Fields) -> dict[str, Any]:
    """Return the fields of ModernBERT's rotary embeddings under the names that `read_ropes` knows."""
    values = dict(fields.values)
    values["rope_theta"] = fields.number("global_rope_theta", 160000.0)
    values["local_rope_theta"] = fields.number("local_rope_theta", 10000.0)
    return values


def _nomic(fields: Fields, family: str) -> EncoderConfig:
    _check_fixed(fields, NOMIC_FIXED)
    fields = fields.of_family({"rope_theta": 1000.0}, {}, NOMIC_FIELDS)
    published = fields.get("n_embd") is not None
    if fields.get("rotary_emb_scale_base") is not None:
        raise fields.error("rotary_emb_scale_base", "is not supported, only null")
    name = "activation_function" if published else "hidden_act"
    if published and fields.get(name) not in NOMIC_ACTIVATIONS:
        raise fields.error(name, f"{fields.get(name)!r} is not supported, only swiglu and geglu")
    sizes = _sizes(fields, family)
    positions = fields.integer("max_position_embeddings", 2048)
    if fields.get("rotary_scaling_factor") is not None:  # beyond these, frequencies depend on a text's length
        positions = min(positions, fields.integer("max_trained_positions", 2048))
    mlp = (fields.flag(f"mlp_{each}_bias", False) for each in ("fc1", "fc2")) if published else (False, False)
    up_bias, down_bias = mlp
    biased = fields.flag("qkv_proj_bias", False) if published else False
    ropes = read_ropes(fields, sizes["hidden_size"] // sizes["heads"], local=None, partial=False)
    return EncoderConfig(
        **sizes,
        plan=(EncoderLayer(0),) * _layers(fields),
        ropes=ropes,
        activation=_activation(fields, name, "silu", NOMIC_ACTIVATIONS),
        gated=True,
        eps=fields.number("layer_norm_eps", 1e-12),
        qkv_bias=biased,
        attention_out_bias=biased,
        up_bias=up_bias,
        down_bias=down_bias,
        max_positions=positions,
        token_types=_types(fields, 2),
    )


def _gte(fields: Fields, family: str) -> EncoderConfig:
    _check_fixed(fields, NEW_FIXED)
    fields = fields.of_family({"rope_theta": 10000.0 if family == "new" else 160000.0}, {}, {})
    sizes = _sizes(fields, family)
    scaling = fields.section("rope_scaling")
    ntk = scaling is not None and scaling.get("type") == "ntk"
    plain = fields.without(("rope_scaling",)) if ntk else fields
    ropes = read_ropes(plain, sizes["hidden_size"] // sizes["heads"], local=None, partial=False)
    if ntk and scaling is not None:
        if unknown := sorted(scaling.values.keys() - {"type", "factor"}):
            raise scaling.error(unknown[0], "is not supported beside type and factor")
        ropes = (Rope(ropes[0].theta, ropes[0].dims, Ntk(scaling.number("factor"))),)
    return EncoderConfig(
        **sizes,
        plan=(EncoderLayer(0),) * _layers(fields),
        ropes=ropes,
        activation=_activation(fields, "hidden_act", "gelu"),
        gated=True,
        eps=fields.number("layer_norm_eps", 1e-12),
        up_bias=False,
        max_positions=fields.integer("max_position_embeddings", 8192),
        token_types=_types(fields, 1),
    )


_READERS: Mapping[str, Callable[[Fields, str], EncoderConfig]] = {
    "bert": _bert,
    "camembert": _bert,
    "gemma3_text": read_bidirectional,
    "gte": _gte,
    "llama_bidirec": read_bidirectional,
    "modernbert": _modernbert,
    "new": _gte,
    "nomic_bert": _nomic,
    "roberta": _bert,
    "xlm-roberta": _bert,
}
