"""GGUF files that lie: each is refused with an error that names the field, whatever its counts, lengths and offsets."""

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.gguf.gguf_files import make_gguf, write_gguf
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, config_digest, open_weights, same_text
from workers.checkpoints.gguf.find import first_file
from workers.checkpoints.gguf.gguf_file import MAX_KEYS, MAX_TENSORS, GgufFile, GgufShard
from workers.checkpoints.gguf.metadata import MAX_ITEMS, MAX_STRING
from workers.text.checkpoint_tokenizer import CheckpointTokenizer


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def whole(*parts: bytes, keys: int = 0, tensors: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


PADDING = bytes(256)
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty, and not a GGUF file"),
    "magic": (whole(magic=b"GGML"), "magic: is not a GGUF file"),
    "version": (whole(version=1), "version: 1 is not supported, only 2 and 3"),
    "endian": (whole(version=3 << 24), "version: the file is big-endian"),
    "truncated": (b"GGUF\x03\0\0\0\x01", "tensor_count: the file ends within it"),
    "keys": (whole(keys=MAX_KEYS + 1), f"metadata_kv_count: {MAX_KEYS + 1} is over the bound"),
    "tensors": (whole(tensors=MAX_TENSORS + 1), f"tensor_count: {MAX_TENSORS + 1} is over the bound"),
    "no-keys": (whole(keys=1), "key 0: the file ends within it"),
    "long-key": (whole(struct.pack("<Q", 1 << 63), keys=1), f"key 0: a string of {1 << 63} bytes is over the bound"),
    "type": (whole(key("a", 13, PADDING), keys=1), "a: the type 13 is unknown"),
    "twice": (whole(key("a", 4, b"\1\0\0\0") * 2, keys=2), "a: is there twice"),
    "string": (whole(key("a", 8, struct.pack("<Q", MAX_STRING + 1)), keys=1), "a: a string of"),
    "utf-8": (whole(key("a", 8, struct.pack("<Q", 1) + b"\xff"), keys=1), "a: is not UTF-8"),
    "array": (whole(key("a", 9, struct.pack("<IQ", 4, MAX_ITEMS + 1)), keys=1), "a: an array of"),
    "items": (whole(key("a", 9, struct.pack("<IQ", 4, MAX_ITEMS)), keys=1), "a: the file ends within it"),
    "strings": (whole(key("a", 9, struct.pack("<IQ", 8, MAX_ITEMS)), keys=1), "a: the file is too short for an array"),
    "nested": (whole(key("a", 9, struct.pack("<IQ", 9, 1)) + PADDING, keys=1), "a: arrays of arrays"),
    "long-item": (
        whole(key("a", 9, struct.pack("<IQQ", 8, 1, 1 << 40)) + PADDING, keys=1),
        f"a: string 0 has {1 << 40} bytes",
    ),
    "alignment": (
        whole(key("general.alignment", 4, b"\3\0\0\0"), keys=1),
        "general.alignment: 3 is not a power of two",
    ),
    "dimensions": (whole(tensor("t", (1,) * 5, 0, 0), tensors=1), "t: 5 dimensions are not 1 to 4"),
    "unknown": (
        whole(tensor("t", (32,), 99, 0), PADDING, tensors=1),
        "t: the tensor type 99 is not supported, only BF16",
    ),
    "elements": (whole(tensor("t", (1 << 32, 1 << 32), 0, 0), PADDING, tensors=1), "t: the shape"),
    "nothing": (whole(tensor("t", (0,), 0, 0), PADDING, tensors=1), "t: the shape (0,) has no elements"),
    "blocks": (whole(tensor("t", (33,), 8, 0), PADDING, tensors=1), "t: 33 inputs are not whole blocks of 32 of Q8_0"),
    "unaligned": (whole(tensor("t", (8,), 0, 4), PADDING, tensors=1), "t: the offset 4 is not a multiple of 32"),
    "beyond": (whole(tensor("t", (8,), 0, 1 << 62), PADDING, tensors=1), "t: the tensor ends at byte"),
    "overlap": (
        whole(tensor("t", (16,), 0, 0), tensor("u", (8,), 0, 32), PADDING, tensors=2),
        "u: the tensor overlaps t",
    ),
    "same-name": (whole(tensor("t", (8,), 0, 0) * 2, PADDING, tensors=2), "t: the tensor is there twice"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_lies_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    content, problem = FILES[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        GgufFile.open(file)
    assert str(refused.value).startswith(f"{file}: {problem}")


def test_what_ends_at_the_last_byte_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    start = -(-len(whole(tensor("t", (8,), 0, 0), tensors=1)) // 32) * 32
    content = whole(tensor("t", (8,), 0, 0), PADDING, tensors=1)[: start + 32]
    file.write_bytes(content)
    assert GgufFile.open(file).tensors["t"].nbytes == 32
    file.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="is it complete"):
        GgufFile.open(file)


@pytest.mark.parametrize(
    "values", [key("a", 4, bytes(4)), key("a", 9, struct.pack("<IQ", 8, 2) + text("") * 2)], ids=["number", "strings"]
)
def test_the_bound_of_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(whole(values, PADDING, keys=1))
    end = len(whole(values))
    monkeypatch.setattr("workers.checkpoints.gguf.metadata.MAX_HEADER", end)
    assert GgufShard(file).header_bytes == end
    monkeypatch.setattr("workers.checkpoints.gguf.metadata.MAX_HEADER", end - 1)
    with pytest.raises(CheckpointError, match=r"a: .* the bound"):
        GgufShard(file)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (lambda file: file.symlink_to("/dev/zero"), "is not a regular file: replace it by one"),
        (lambda file: None, "there is no such file"),
        (lambda file: file.symlink_to(file.name), "cannot be read: Too many levels of symbolic links"),
    ],
    ids=["device", "missing", "loop"],
)
def test_what_is_no_file(tmp_path: Path, kind: Callable[[Path], object], problem: str) -> None:
    kind(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=problem):
        ModelConfig.from_dir(tmp_path / "model.gguf")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    path = make_checkpoint(folder / "model", hidden=32, heads=2, kv_heads=2, ffn=32, layers=1, vocab=260)
    return make_gguf(path, folder / "model.gguf", Type.Q8_0)


def read_all(file: Path) -> None:
    """Everything that a load reads."""
    ModelConfig.from_dir(file)
    weights = open_weights(file)
    for name in weights:
        weights[name]
    config_digest(file)
    same_text(file, file)
    CheckpointTokenizer.from_dir(file)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_of_the_header_that_change_are_read_or_refused(made: Path, tmp_path: Path, data: st.DataObject) -> None:
    """No other exception than `CheckpointError`, and no memory beyond the file's size."""
    content = bytearray(made.read_bytes())
    tensors = content.index(b"blk.0.attn_k.weight") - 512
    low = data.draw(st.sampled_from([0, 0, tensors]))
    at = data.draw(st.integers(low, low + 1536))
    value = data.draw(st.sampled_from([b"\xff" * 8, bytes(8), b"\0\0\0\x80", b"\x01", b"\x7f" * 4, b"\xfe"]))
    content[at : at + len(value)] = value
    file = tmp_path / "changed.gguf"
    file.write_bytes(content[: data.draw(st.sampled_from([None, at + 3, len(content) - 1]))])
    with contextlib.suppress(CheckpointError):
        read_all(file)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [(31, 32), (1, 32, 32)], ids=["odd", "stack"])
def test_a_matrix_of_another_shape_is_refused_by_its_name(tmp_path: Path, kind: Type, shape: tuple[int, ...]) -> None:
    file = tmp_path / "model.gguf"
    keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.attention.head_count": 2}
    write_gguf(file, keys, {"blk.0.attn_q.weight": np.zeros(shape, np.float32)}, kind)
    with pytest.raises(CheckpointError, match=rf"blk\.0\.attn_q\.weight: has the shape \({shape[0]}, .*not rows of 2"):
        open_weights(file)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0], ids=lambda kind: kind.name)
def test_a_matrix_of_other_sizes_is_refused_by_its_name(tmp_path: Path, kind: Type) -> None:
    file, name = tmp_path / "model.gguf", "model.layers.0.self_attn.v_proj.weight"
    keys = {"general.architecture": "llama", "llama.block_count": 1, "llama.attention.head_count": 2}
    write_gguf(file, keys, {"blk.0.attn_v.weight": np.zeros((31, 32), np.float32)}, kind)
    weights = open_weights(file)
    take = weights.take if weights.format(name) is None else weights.take_quantized
    with pytest.raises(CheckpointError, match=r"v_proj\.weight: has the shape \(31, "):
        take(name, (32, 32))


def test_the_bound_of_matrices_of_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is listed by its name, and a stack of many small ones takes few bytes of the file."""
    file = tmp_path / "model.gguf"
    keys = {"general.architecture": "llama", "llama.block_count": 2, "llama.attention.head_count": 2}
    stacks = {f"blk.{layer}.ffn_up_exps.weight": np.zeros((4, 1, 32), np.float32) for layer in range(2)}
    write_gguf(file, keys, stacks)
    monkeypatch.setattr("workers.checkpoints.gguf.gguf_weights.MAX_TENSORS", 8)
    assert len(open_weights(file)) == 8
    monkeypatch.setattr("workers.checkpoints.gguf.gguf_weights.MAX_TENSORS", 7)
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up_exps\.weight: the model has more than 7 matrices"):
        open_weights(file)


@pytest.fixture
def sharded(tmp_path: Path) -> list[Path]:
    path = make_checkpoint(tmp_path / "model", layers=1)
    first = make_gguf(path, tmp_path / "model.gguf", shards=3)
    return sorted(first.parent.glob("*-of-00003.gguf"))


def test_shards_of_one_model_are_read_by_any_of_them(sharded: list[Path]) -> None:
    one, other = GgufFile.open(first_file(sharded[0])), GgufFile.open(first_file(sharded[2]))
    assert one.tensors == other.tensors
    assert {tensor.file for tensor in one.tensors.values()} == set(sharded)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda files: files[1].unlink(), "model-00002-of-00003.gguf: there is no such file"),
        (lambda files: files[1].write_bytes(files[2].read_bytes()), "split.no: is 2, and the name says 1"),
        (lambda files: files[1].write_bytes(files[0].read_bytes()), "split.no: is 0, and the name says 1"),
        (lambda files: [file.rename(f"{file}".replace("-00003.", "-00002.")) for file in files], "split.count: is 3"),
    ],
    ids=["missing", "twice", "first-twice", "renamed"],
)
def test_shards_that_do_not_belong_together(
    sharded: list[Path], change: Callable[[list[Path]], object], problem: str
) -> None:
    change(sharded)
    first = min(sharded[0].parent.glob("*-00001-of-*.gguf"))
    with pytest.raises(CheckpointError, match=problem):
        GgufFile.open(first)


def test_a_folder_with_several_models_is_refused(made: Path, tmp_path: Path) -> None:
    for name in ("a-Q8_0.gguf", "b.gguf", "mmproj-a.gguf"):
        (tmp_path / name).write_bytes(made.read_bytes())
    with pytest.raises(CheckpointError, match=r"has several models, name one of them: a-Q8_0\.gguf, b\.gguf$"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "b.gguf").unlink()
    assert ModelConfig.from_dir(tmp_path) == ModelConfig.from_dir(made)
