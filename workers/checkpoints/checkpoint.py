"""A checkpoint directory in Hugging Face layout: how it is found, its tensors, and its digest."""

import hashlib
import json
import logging
import sys
from pathlib import Path

from workers.checkpoints.architectures.config import DEFAULT_CONTEXT, ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.wrapper import unwrap
from workers.checkpoints.json_files import A_MODEL, MAX_TABLE_BYTES, CheckpointError, read_json
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
    "resolve_model",
    "same_text",
]

OTHER_FORMATS = ["consolidated*", "*/*"]
"""Files of a hub model with the same weights for other programs."""
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


def resolve_model(path_or_hub_id: str) -> Path:
    """Return a local directory as it is, and fetch anything else from the Hugging Face hub, or find it in its cache.

    Raises `CheckpointError` when it is neither, or when the hub cannot be reached.
    """
    local = Path(path_or_hub_id).expanduser()
    if path_or_hub_id and local.is_dir():
        return local
    if path_or_hub_id and local.is_file():
        kind = "is a GGUF file, which Baton does not read" if local.suffix == ".gguf" else "is a file"
        raise CheckpointError(path_or_hub_id, "", f"{kind}; {A_MODEL}")
    parts = path_or_hub_id.split("/")
    if len(parts) != 2 or not all(parts) or path_or_hub_id.startswith((".", "~")):
        raise CheckpointError(path_or_hub_id, "", "there is no such directory, and it is not a hub id like ORG/NAME")
    from huggingface_hub import snapshot_download  # slow to import and only needed here

    _quieten_hub()
    patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(path_or_hub_id, allow_patterns=patterns, ignore_patterns=OTHER_FORMATS))
    except Exception as error:  # the hub client lets its transport's own errors through
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            path_or_hub_id,
            "",
            "is not a local directory and could not be fetched from the Hugging Face hub "
            f"(no network, no such model, or it needs a login): {reason}",
        ) from error


def _quieten_hub() -> None:
    """Let the hub client log through our handler, and show its progress on a terminal alone."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    own = logging.getLogger("huggingface_hub")
    for handler in own.handlers[:]:  # it prints text, beside the lines of our handler
        own.removeHandler(handler)
    if not sys.stderr.isatty():
        disable_progress_bars()
