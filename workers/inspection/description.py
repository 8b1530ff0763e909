"""Describes a checkpoint by its config.json and its tokenizer's files, or by the metadata of a GGUF file."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import LayerConfig
from workers.checkpoints.architectures.tensors import stored_parameter_count
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.documents import find_document
from workers.checkpoints.encoders.config import EncoderConfig, EncoderLayer
from workers.checkpoints.encoders.tensors import encoder_parameter_count
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.json_files import MAX_TABLE_BYTES
from workers.checkpoints.lone_config import HEADS, KV_HEADS, LAYERS, POSITIONS, LoneConfig, first_number
from workers.inspection.served_tasks import has_chat_template

NAMES: Mapping[str, str] = {
    "attention": "attention",
    "convolution": "short convolution",
    "gated_delta": "gated delta network",
    "mamba2": "Mamba-2",
    "none": "MLP",
}


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a checkpoint. A number that it does not state is 0, a text is empty."""

    family: str
    """`model_type`, or `general.architecture` of a GGUF file that no family describes."""
    architecture: str
    """The class in transformers."""
    format: str
    """The format of the weights: `safetensors`, or `GGUF` with its tensor types."""
    quantization: str
    dtype: str
    parameters: int = 0
    """A tied matrix counts once; 0 where no family describes the checkpoint."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """The number of layers by their kind."""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    experts: str = ""
    context: int = 0
    vocabulary: int = 0
    tokenizer: str = ""
    """The algorithm of tokenizer.json, or that of the GGUF file."""
    chat_template: bool = False

    @classmethod
    def of(cls, path: Path, fields: Fields, config: ModelConfig | LoneConfig | EncoderConfig | None) -> "Description":
        """Describe a checkpoint by the fields of its config.json, and by what a backend has read from them; None if
        all backends refuse it. Raises `CheckpointError`."""
        names = fields.get("architectures")
        architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
        text: dict[str, Any] = {
            "tokenizer": _tokenizer(path),
            "chat_template": has_chat_template(path),
            "format": _format(path),
        }
        if isinstance(config, EncoderConfig):
            return _of_encoder(config, text)
        if not isinstance(config, ModelConfig):
            return _by_fields(fields, architecture, config, text)
        experts = config.experts
        return cls(
            family=config.family,
            architecture=architecture,
            quantization=_quantization(fields),
            dtype=config.dtype,
            parameters=stored_parameter_count(config),
            layers=dict(Counter(_kind(layer) for layer in config.plan)),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            experts=f"{experts.count}, {experts.per_token} for each token" if experts else "",
            context=config.max_positions,
            vocabulary=config.vocab_size,
            **text,
        )


def _of_encoder(config: EncoderConfig, text: Mapping[str, Any]) -> Description:
    return Description(
        family=config.family,
        architecture=config.architecture,
        quantization="",
        dtype=config.dtype,
        parameters=encoder_parameter_count(config),
        layers=dict(Counter(map(_encoder_kind, config.plan))),
        heads=config.heads,
        kv_heads=config.kv,
        head_dim=config.head_dim,
        context=config.max_positions,
        vocabulary=config.vocab_size,
        **text,
    )


def _encoder_kind(layer: EncoderLayer) -> str:
    reach = "" if layer.window is None else f", window {2 * layer.window + 1}"
    return f"attention in both directions{reach}"


def _by_fields(fields: Fields, architecture: str, config: LoneConfig | None, text: Mapping[str, Any]) -> Description:
    inner = fields.section("text_config") or fields
    family = fields.get("model_type")
    layers = first_number(inner, LAYERS)
    return Description(
        family=family if isinstance(family, str) else "",
        architecture=architecture,
        quantization=_quantization(fields),
        dtype=config.dtype if config else "",
        layers={"not described": layers} if layers else {},
        heads=first_number(inner, HEADS),
        kv_heads=first_number(inner, KV_HEADS),
        head_dim=first_number(inner, ("head_dim",)),
        context=first_number(inner, POSITIONS),
        vocabulary=first_number(inner, ("vocab_size",)),
        **text,
    )


def _kind(layer: LayerConfig) -> str:
    name = NAMES[layer.kind]
    if layer.window is not None:
        name += f", window {layer.window}"
    return f"{name}, experts" if layer.experts else name


def _quantization(fields: Fields) -> str:
    """Name the quantization as config.json states it, whether or not it is supported."""
    plan = fields.get("quantization") or fields.get("quantization_config")
    if not isinstance(plan, dict):
        return ""
    stated = [("quant_method", "{}"), ("mode", "{}"), ("bits", "{} bits"), ("group_size", "groups of {}")]
    found = [text.format(plan[name]) for name, text in stated if isinstance(plan.get(name), str | int)]
    return ", ".join(found if "quant_method" in plan else ["mlx", *found])


def _format(path: Path) -> str:
    file = gguf_path(path)
    if file is None:
        return "safetensors"
    counts: Counter[str] = Counter()
    for tensor in GgufFile.open(file).tensors.values():
        counts[tensor.type.name] += math.prod(tensor.shape)
    return f"GGUF, {', '.join(name for name, _ in counts.most_common())}"


def _tokenizer(path: Path) -> str:
    """Name the algorithm of the tokenizer; empty without one."""
    file = gguf_path(path)
    if file is not None:
        model = GgufFile.open(file).metadata.get("tokenizer.ggml.model")
        return model if isinstance(model, str) else ""
    read = find_document(path, "tokenizer.json", MAX_TABLE_BYTES)
    if read is None:
        return ""
    model = read.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    return kind if isinstance(kind, str) else "of an unknown kind"
