"""A checkpoint, a directory in Hugging Face layout or a GGUF file: its tensors, and its digest."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from workers.checkpoints.architectures.config import DEFAULT_CONTEXT, ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.wrapper import SHARED, Wrapper, module_names_inside, unwrap
from workers.checkpoints.documents import document_file, find_document, read_fields
from workers.checkpoints.expert_stacks import StackLayout, stack_layout
from workers.checkpoints.gguf.find import SUFFIX, gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.json_files import MAX_TABLE_BYTES, CheckpointError
from workers.checkpoints.low_bits.config import parse_low_bits
from workers.checkpoints.low_bits.low_bit_weights import LowBitWeights
from workers.checkpoints.mlx_files.converted_weights import ConvertedWeights
from workers.checkpoints.quantization_config import Quantization, parse_quantization
from workers.checkpoints.weight_files import WeightFiles
from workers.checkpoints.weights import Weights
from workers.precision import Quantize

__all__ = [
    "DEFAULT_CONTEXT",
    "CheckpointError",
    "ModelConfig",
    "Quantization",
    "Weights",
    "config_digest",
    "open_part",
    "open_weights",
    "same_text",
    "stacks_of",
]

TOKENIZER = "tokenizer.json"
_DIGEST_EDGE = 1 << 20
_SAMPLES, _SAMPLE = 256, 4096
"""Number and bytes of the samples of a weight file between its ends, closer together than a matrix is long."""


def open_weights(path: Path, quantize: Quantize = "none") -> Weights:
    """Open the tensors of `path` by their Hugging Face names; they are read, and dequantized, on access.

    Of a multimodal model they are the language model's, under the names that they have there. With `quantize` the
    matrices of a GGUF file, and those that `low_bits` reads, are plain, so that they can be quantized anew. Raises
    `CheckpointError` for a missing or damaged file and for a tensor type that is not supported.
    """
    file = gguf_path(path)
    if file is not None:
        return GgufWeights(GgufFile.open(file), quantize)
    fields, wrapper = unwrap(read_fields(path))
    return _open_files(path, fields, wrapper, quantize)


def open_part(path: Path, prefixes: Mapping[str, str]) -> Weights:
    """Open the tensors of one part of a multimodal model in Hugging Face layout, such as its vision tower, whose names
    begin with one of these prefixes; each has another prefix instead, as in `Wrapper.inside`. Raises what
    `open_weights` raises."""
    part = Wrapper({}, prefixes, ("",))
    fields = read_fields(path)
    own = {name: module_names_inside(fields.values[name], part) for name in SHARED if name in fields.values}
    return _open_files(path, Fields(fields.file, own), part, "none")


def _open_files(path: Path, fields: Fields, wrapper: Wrapper | None, quantize: Quantize) -> Weights:
    stacks = stacks_of(path, fields, wrapper)
    low_bits = parse_low_bits(fields.file, fields.values)
    if low_bits is not None:
        return LowBitWeights(path, low_bits, quantize, wrapper, stacks)
    quantization = parse_quantization(fields.file, fields.values)
    return ConvertedWeights(path, quantization, wrapper, stacks)


def stacks_of(path: Path, fields: Fields, wrapper: Wrapper | None) -> StackLayout:
    """Return the layout of stacked experts in a checkpoint, whose language model has these fields. In a class that
    was published with transposed ones, those that transformers 5 has saved are not. Raises `CheckpointError`."""
    transposed = False
    if wrapper is not None and wrapper.transposes_experts:
        files = WeightFiles(path)
        where = files.locate()
        name = next((name for name in where if name.endswith(".experts.down_proj")), None)
        if name is not None:
            shape = files.open(where[name]).get_slice(name).get_shape()
            transposed = len(shape) > 1 and shape[1] != fields.integer("hidden_size")
    return stack_layout(fields.get("model_type"), transposed=transposed)


def config_digest(path: Path) -> str:
    """Digest of a model, 32 hexadecimal digits: equal where descriptions, tokenizer and weights are.

    Of weight files it covers the size, the first and last MiB (names and shapes), and samples between, which differ
    when a model is trained further. Reading a file whole would take longer than loading it.
    """
    digest = hashlib.sha256()
    model = gguf_path(path) if path.is_dir() or path.suffix == SUFFIX else path  # a projector may have any name
    shards = {} if model is None else GgufFile.open(model).shards
    for file in shards or sorted(path.iterdir()):
        if file in shards:
            digest.update(shards[file].header())
        elif not file.is_file() or file.suffix not in (".json", ".jinja", ".safetensors"):
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
    read = find_document(path, TOKENIZER, MAX_TABLE_BYTES)
    if read is None:
        return None
    model, added = read.get("model"), read.get("added_tokens") or []
    if not isinstance(model, dict) or not all(isinstance(each, dict) for each in added):
        raise CheckpointError(document_file(path, TOKENIZER), "", "is no tokenizer")
    vocab, decoder = model.get("vocab"), read.get("decoder")
    tokens = {each.get("content"): each.get("id") for each in added}
    if isinstance(decoder, dict) and decoder.get("type") == "ByteLevel":
        decoder = "ByteLevel"  # whose settings concern the splitting of text
    return ({**vocab, **tokens} if isinstance(vocab, dict) else (vocab, tokens)), decoder
