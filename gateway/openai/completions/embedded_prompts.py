"""The field `prompt_embeds` of completions: rows of embeddings in place of a prompt, as safetensors in base64.

vLLM reads the field with `torch.load`, whose pickles and sparse tensors have run code and corrupted memory
(CVE-2025-62164). A file of safetensors is a header of JSON and plain numbers, whose type and extent are checked here.
"""

import base64
import binascii
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.errors import RequestError, invalid
from protocol.bounds import MAX_EMBEDDING_BYTES, MAX_TOKENS
from protocol.request import EMBEDDING_BYTES, EmbeddedInput, EmbeddingRows, EmbeddingType

FIELD = "prompt_embeds"
MAX_HEADER = 4096
"""Bytes of the header of a file with one tensor."""
DTYPES: dict[str, EmbeddingType] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class TensorHeader(Struct, forbid_unknown_fields=True, gc=False):
    """The entry of a tensor in the header of a file."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=1, le=MAX_TOKENS)], ...]
    data_offsets: tuple[int, int]


_header = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor = msgspec.json.Decoder(TensorHeader)


def embedded_prompt(text: str) -> EmbeddedInput:
    """Return the input of a prompt of embeddings. Raises `RequestError`."""
    try:
        file = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("is not base64") from None
    size = int.from_bytes(file[:8], "little")
    if not 2 <= size <= MAX_HEADER or len(file) < 8 + size:
        raise _refused(
            f"is not safetensors: the file must begin with the length of a header of up to {MAX_HEADER} bytes"
        )
    try:
        entries = _header.decode(file[8 : 8 + size])
        tensors = [_tensor.decode(entry) for name, entry in entries.items() if name != "__metadata__"]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise _refused("is not safetensors: its header is not one") from None
    if len(tensors) != 1:
        raise _refused(f"has {len(tensors)} tensors: give one")
    return EmbeddedInput((_rows(tensors[0], file[8 + size :]),))


def _rows(tensor: TensorHeader, data: bytes) -> EmbeddingRows:
    """Return the rows of the only tensor of a file. Raises `RequestError`."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise _refused(f"has the type {tensor.dtype[:16]!r}: give one of {', '.join(DTYPES)}")
    if len(tensor.shape) != 2:
        raise _refused(f"has {len(tensor.shape)} dimensions: give [tokens, hidden size]")
    count, width = tensor.shape
    size = count * width * EMBEDDING_BYTES[dtype]
    if size > MAX_EMBEDDING_BYTES:
        raise _refused(f"has {size} bytes of embeddings, {MAX_EMBEDDING_BYTES} are allowed")
    if tensor.data_offsets != (0, size) or len(data) != size:
        raise _refused(f"is not safetensors: a tensor of {size} bytes must be all that follows the header")
    return EmbeddingRows(dtype, width, data)


def _refused(problem: str) -> RequestError:
    return invalid(FIELD, f"`{FIELD}` {problem}")
