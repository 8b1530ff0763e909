"""Files of a checkpoint that are no files, or larger than any real one: each is refused by name, and never read whole.

A link to `/dev/zero` states a size of 0 and has no end, and opening a FIFO waits for a writer.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.attacks.checkpoints.loading import BACKENDS, Backend, refusal, spec_of
from tests.checkpoints import make_checkpoint
from workers.checkpoints.json_files import MAX_CONFIG_BYTES, MAX_TABLE_BYTES
from workers.checkpoints.weight_files import MAX_HEADER_BYTES
from workers.process.loading import load
from workers.process.startup.describe import describe
from workers.text.checkpoint_tokenizer import MAX_TEMPLATE_BYTES

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")

INDEX = "model.safetensors.index.json"
FILES: Mapping[str, int] = {
    "config.json": MAX_CONFIG_BYTES,
    "generation_config.json": MAX_CONFIG_BYTES,
    "tokenizer.json": MAX_TABLE_BYTES,
    "tokenizer_config.json": MAX_CONFIG_BYTES,
    "special_tokens_map.json": MAX_CONFIG_BYTES,
    "chat_template.jinja": MAX_TEMPLATE_BYTES,
    INDEX: MAX_TABLE_BYTES,
}
"""Bytes that are read of each file, at most."""


def sparse(file: Path) -> None:
    """A file of 1 TiB that takes no room on the disk."""
    with file.open("wb") as stream:
        stream.truncate(1 << 40)


KINDS: Mapping[str, Callable[[Path], object]] = {
    "endless-device": lambda file: file.symlink_to("/dev/zero"),
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "huge": sparse,
}


def with_file(folder: Path, name: str, kind: str) -> Path:
    """A checkpoint in which one file is replaced; with an index it has shards."""
    path = make_checkpoint(folder / "model", sharded=name == INDEX)
    (path / name).unlink(missing_ok=True)
    KINDS[kind](path / name)
    return path


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_a_description_that_is_no_file_of_a_model_is_refused(
    tmp_path: Path, name: str, kind: str, backend: Backend
) -> None:
    path = with_file(tmp_path, name, kind)
    bound = f"is larger than the bound of {FILES[name]} bytes"
    assert refusal(path, backend).startswith(
        f"{path / name}: {bound if kind == 'huge' else 'is not a regular file: replace it by one'}"
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["endless-device", "fifo", "folder"])
@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00003.safetensors"])
def test_weights_that_are_no_file_are_refused(tmp_path: Path, name: str, kind: str, backend: Backend) -> None:
    path = make_checkpoint(tmp_path / "model", sharded="-of-" in name)
    (path / name).unlink()
    KINDS[kind](path / name)
    assert refusal(path, backend) == f"{path / name}: is not a regular file: replace it by one"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_header_of_gigabytes_is_refused(tmp_path: Path, backend: Backend) -> None:
    file = make_checkpoint(tmp_path / "model") / "model.safetensors"
    for length in (MAX_HEADER_BYTES + 1, 1 << 33, (1 << 64) - 1):
        sparse(file)
        with file.open("r+b") as stream:
            stream.write(length.to_bytes(8, "little"))
        assert f"a header of {length} bytes is over the bound" in refusal(file.parent, backend)


HEADERS: Mapping[str, bytes] = {
    "ends-beyond-the-file": b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    "begins-beyond-the-file": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}',
    "overlaps": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
    "runs-backwards": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
    "another-size-than-the-shape": b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}',
    "a-shape-that-overflows": b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}',
    "no-json": b"{" * 64,
    "deep-json": b"[" * 4096,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: str, backend: Backend) -> None:
    file = make_checkpoint(tmp_path / "model") / "model.safetensors"
    file.write_bytes(len(HEADERS[header]).to_bytes(8, "little") + HEADERS[header] + bytes(8))
    assert refusal(file.parent, backend).startswith(f"{file}: is not a safetensors file: ")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shard", ["../model.safetensors", "/dev/zero", "sub/model.safetensors", "..", "."])
def test_a_shard_elsewhere_is_refused(tmp_path: Path, shard: str, backend: Backend) -> None:
    path = make_checkpoint(tmp_path / "model", sharded=True)
    (path / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))
    text = refusal(path, backend)
    assert text.startswith((f"{path / INDEX}: weight_map.a: ", f"{path}/..: is not a regular file")), text


@pytest.mark.parametrize("kind", ["endless-device", "fifo", "folder", "huge"])
@pytest.mark.parametrize("name", ["model-stray.safetensors", "hf_quant_config.json", "vocab.json", "merges.txt"])
def test_files_that_are_not_part_of_the_model_are_not_read(tmp_path: Path, name: str, kind: str) -> None:
    path = with_file(tmp_path, name, kind)
    describe(spec_of(path, "mlx"))
    load(spec_of(path, "mlx"), lambda *_: None).engine.close()
