"""Adapters that are not what they seem. Each function spoils one, and returns words of the error."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def header(length: int, content: bytes = b"", size: int = 0) -> Callable[[Path], None]:
    """Write a file whose header says to have `length` bytes; `size` is that of the file, which has no blocks."""

    def spoil(directory: Path) -> None:
        with (directory / WEIGHTS).open("wb") as file:
            file.write(struct.pack("<Q", length) + content)
            if size:
                file.truncate(size)

    return spoil


def described(fields: Any, size: int = 64) -> Callable[[Path], None]:
    """Write a header that describes tensors so, and `size` bytes of them."""
    content = json.dumps(fields).encode()
    return header(len(content), content + b"\0" * size)


def config(**changed: Any) -> Callable[[Path], None]:
    """Change the description."""

    def spoil(directory: Path) -> None:
        file = directory / CONFIG
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return spoil


def tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the tensors."""

    def spoil(directory: Path) -> None:
        found = load_file(directory / WEIGHTS)
        change(found)
        save_file(found, directory / WEIGHTS)

    return spoil


def emptied(directory: Path) -> None:
    (directory / WEIGHTS).write_bytes(b"")


def text(content: bytes) -> Callable[[Path], None]:
    """Write another description."""

    def spoil(directory: Path) -> None:
        (directory / CONFIG).write_bytes(content)

    return spoil


def of_type(dtype: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update({name: each.astype(dtype) for name, each in found.items()})


def one(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def changed(found: dict[str, Any]) -> None:
        name = sorted(found)[0]
        found[name] = np.ascontiguousarray(change(found[name]))

    return changed


def times(factor: float) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update({name: each * np.float32(factor) for name, each in found.items()})


def each(*spoils: Callable[[Path], None]) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        for one_of in spoils:
            one_of(directory)

    return spoil


_ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
_SPOILED: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "header of 2**63": (header(1 << 63), "is not a safetensors file"),
    "header of 1 GiB": (header(1 << 30, b"{", size=1 << 31), "is not a safetensors file"),
    "header past the end": (header(1 << 20, b"{}"), "is not a safetensors file"),
    "empty file": (emptied, "is not a safetensors file"),
    "no object": (described([]), "is not a safetensors file"),
    "offsets past the end": (described({"a": _ENTRY | {"data_offsets": [0, 1 << 60]}}), "is not a safetensors file"),
    "overlap": (described({"a": _ENTRY, "b": _ENTRY}), "is not a safetensors file"),
    "shape of 2**64": (described({"a": _ENTRY | {"shape": [1 << 32, 1 << 32]}}), "is not a safetensors file"),
    "no pair": (described({"x.lora_A.weight": _ENTRY | {"shape": [4, 1]}}, 16), "has no counterpart"),
    "no tensors": (described({}, 0), "has no tensors"),
    "integers": (tensors(of_type(np.int32)), "type I32 is not supported"),
    "a vector": (tensors(one(lambda each: each[0])), "not that of a matrix"),
    "other inputs": (tensors(one(lambda each: each[:, :-1])), "inputs, model.layers.0."),
    "other rank": (tensors(one(lambda each: each[:-1])), "has the rank 3, adapter_config.json says 4"),
    "nan": (tensors(one(lambda each: each * np.float32("nan"))), "has values that are not finite"),
    "infinite": (tensors(one(lambda each: each * np.float32("inf"))), "has values that are not finite"),
    "infinite with its scale": (each(tensors(times(1e30)), config(lora_alpha=1e15)), "times the scale"),
    "rank 0": (config(r=0), "r"),
    "rank as text": (config(r="4"), "r"),
    "rank true": (config(r=True), "r"),
    "huge rank": (config(r=1 << 40), "r"),
    "alpha nan": (config(lora_alpha=float("nan")), "lora_alpha"),
    "another kind": (config(peft_type="IA3"), "only LORA"),
    "dora": (config(use_dora=True), "use_dora: true is not supported"),
    "embeddings": (
        tensors(lambda found: found.update({"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((4, 8))})),
        "is neither of the matrices of a linear module",
    ),
    "config is a list": (text(b"[]"), "is not a JSON object"),
    "config is deep": (text(b"[" * 100_000), "adapter_config.json"),
    "config is no text": (text(b"\xff\xfe"), "is not UTF-8"),
    "config is empty": (text(b""), "adapter_config.json"),
}


def _made(spoil: Callable[[Path], None], words: str) -> Callable[[Path], str]:
    def make(directory: Path) -> str:
        spoil(directory)
        return words

    return make


HOSTILE = {name: _made(*spoiled) for name, spoiled in _SPOILED.items()}
