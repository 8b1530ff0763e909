"""A checkpoint directory in Hugging Face layout: its tensors, and its digest."""

import hashlib
import json
from pathlib import Path

from workers.checkpoints.architectures.config import DEFAULT_CONTEXT, ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.wrapper import unwrap
from workers.checkpoints.json_files import MAX_TABLE_BYTES, CheckpointError, read_json
from workers.checkpoints.quantization_config import Quantization, parse_quantization
from workers.checkpoints.weights import Weights

__all__ = [
    "DEFAULT_CONTEXT",
    "CheckpointError",
    "ModelConfig",
    "Quantization",
    "Weights",
    "config_digest",
    "open_weights",
    "same_text",
]

_DIGEST_EDGE = 1 << 20
_SAMPLES, _SAMPLE = 256, 4096
"""Number and bytes of the samples of a weight file between its ends, closer together than a matrix is long."""


def open_weights(path: Path) -> Weights:
    """Open the tensors of `path` by their Hugging Face names; they are read, and dequantized, on access.

    Of a multimodal model they are the language model's, under the names that they have there. Raises `CheckpointError`
    for a missing or damaged file and for a tensor type that is not supported.
    """
    fields, wrapper = unwrap(Fields.read(path / "config.json"))
    quantization = parse_quantization(fields.file, fields.values)
    return Weights(path, quantization, wrapper)


def config_digest(path: Path) -> str:
    """Digest of a model, 32 hexadecimal digits: equal where descriptions, tokenizer and weights are.

    Of weight files it covers the size, the first and last MiB (names and shapes), and samples between, which differ
    when a model is trained further. Reading a file whole would take longer than loading it.
    """
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if not file.is_file() or file.suffix not in (".json", ".jinja", ".safetensors"):
            continue
        size = file.stat().st_size
        digest.update(json.dumps([file.name, size]).encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_DIGEST_EDGE))
            inner = size - 2 * _DIGEST_EDGE
            for sample in range(_SAMPLES if inner > 0 else 0):
                stream.seek(_DIGEST_EDGE + inner * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE))
            if size > _DIGEST_EDGE:
                stream.seek(max(_DIGEST_EDGE, size - _DIGEST_EDGE))
                digest.update(stream.read(_DIGEST_EDGE))
    return digest.hexdigest()[:32]


def same_text(one: Path, other: Path) -> bool:
    """Return True if every token is the same text in two checkpoints, so that one can continue a stream of the other.

    Raises `CheckpointError` for a tokenizer that cannot be read.
    """
    return _texts(one) == _texts(other)


def _texts(path: Path) -> object:
    """Everything that decides the text of a token; None without a tokenizer."""
    file = path / "tokenizer.json"
    if not file.exists():
        return None
    read = read_json(file, MAX_TABLE_BYTES)
    model, added = read.get("model"), read.get("added_tokens") or []
    if not isinstance(model, dict) or not all(isinstance(each, dict) for each in added):
        raise CheckpointError(file, "", "is no tokenizer")
    return model.get("vocab"), {each.get("id"): each.get("content") for each in added}, read.get("decoder")
