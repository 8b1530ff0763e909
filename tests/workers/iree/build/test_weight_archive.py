"""The packed weights on disk: found again, renewed when the checkpoint changes, repaired when damaged."""

import errno
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig, config_digest, open_weights
from workers.errors import LoadRefused
from workers.host.cpu_plan import WorkerCpus
from workers.host.huge_pages import HUGE
from workers.iree.build import weight_archive as archive
from workers.iree.build.weight_archive import (
    ALIGNMENT,
    PACKED_AT_ONCE,
    PACKED_BYTES,
    Archive,
    ArchiveError,
    ArchivePlace,
    open_archive,
)
from workers.iree.kernels.ir.arithmetic import Bf16Dot, FloatFma
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.load_options import Progress

OPS = TiledOps("float32", FloatFma("f32", 16))


def open_at(path: Path, ops: TiledOps | PlainOps, cache_dir: Path, progress: Progress, **bound: int) -> Archive:
    weights = open_weights(path)
    wanted = stored_parameters(ModelConfig.from_dir(path), ops, weights, "none")
    return open_archive(weights, config_digest(path), wanted, ops, ArchivePlace(cache_dir), progress, **bound)


class Packing:
    """Opens the archive and says whether it was made anew."""

    def __init__(self, path: Path, cache_dir: Path) -> None:
        self.path = path
        self.cache_dir = cache_dir

    def made(self, ops: TiledOps | PlainOps = OPS) -> bool:
        phases: list[str] = []
        archive = open_at(self.path, ops, self.cache_dir, lambda phase, done, total: phases.append(phase))
        archive.close()
        assert archive.nbytes > 0
        assert len(archive.index.items()) == 15  # embedding, head, last norm, 6 tensors of each of 2 layers
        return bool(phases)


@pytest.fixture
def packing(tmp_path: Path) -> Packing:
    return Packing(make_checkpoint(tmp_path / "model"), tmp_path / "cache")


def test_made_once(packing: Packing) -> None:
    assert packing.made()
    assert not packing.made()


def test_each_layout_is_its_own(packing: Packing) -> None:
    assert packing.made()
    assert packing.made(PlainOps("float32"))
    assert packing.made(TiledOps("bfloat16", Bf16Dot()))


def test_renewed_with_the_checkpoint(packing: Packing) -> None:
    assert packing.made()
    make_checkpoint(packing.path, seed=1)
    assert packing.made()


@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_repaired(packing: Packing, damage: str) -> None:
    assert packing.made()
    (file,) = (packing.cache_dir / "weights").glob("*.safetensors")
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-64])
    else:
        file.unlink()
    assert packing.made()
    assert not packing.made()
    assert not list((packing.cache_dir / "weights").glob("*.tmp"))


def open_plain(path: Path, cache_dir: Path) -> None:
    open_at(path, PlainOps("float32"), cache_dir, lambda phase, done, total: None).close()


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    """Biases of 3 kv heads of 2 lanes leave gaps behind them."""
    path = make_checkpoint(tmp_path / "model", "qwen2", heads=3, kv_heads=3, head_dim=2, hidden=6)
    ops = PlainOps("float32")
    archive = open_at(path, ops, tmp_path, lambda phase, done, total: None)
    for name, entry in archive.index.items():
        assert np.asarray(entry.file_view).ctypes.data % ALIGNMENT == 0, name
    archive.close()


def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", layers=24)
    weights, ops = open_weights(path), PlainOps("float32")
    wanted = stored_parameters(ModelConfig.from_dir(path), ops, weights, "none")
    tracemalloc.start()
    try:
        open_archive(
            weights, config_digest(path), wanted, ops, ArchivePlace(tmp_path), lambda phase, done, total: None
        ).close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (file,) = (tmp_path / "weights").glob("*.safetensors")
    assert peak < HUGE + file.stat().st_size / 2, "and what is not written yet of the file"


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([1] * 9, PACKED_AT_ONCE),
        ([PACKED_BYTES // 2] * 4, 2),
        ([PACKED_BYTES // 2 + 1] * 4, 1),
        ([1, PACKED_BYTES + 1, 1], 1),
    ],
    ids=["count", "bytes", "one byte more", "one too large"],
)
def test_tensors_are_packed_ahead_in_order_and_within_bounds(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], most: int
) -> None:

    packed: list[int] = []

    class AtOnce(Executor):
        def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
            packed.append(len(packed))
            future: Future[Any] = Future()
            future.set_result(packed[-1])
            return future

    wanted: Any = [mock.Mock(nbytes=size) for size in sizes]
    ahead = []
    for number, result in enumerate(archive._packed_ahead(AtOnce(), wanted, mock.Mock(), OPS)):
        assert result == number
        ahead.append(len(packed) - number)
    assert max(ahead) == most
    assert len(ahead) == len(sizes)


def test_leftovers_of_a_dead_process_are_removed(packing: Packing) -> None:
    assert packing.made()
    (file,) = (packing.cache_dir / "weights").glob("*.safetensors")
    left, others = (file.with_name(f"{file.stem}{rest}.tmp") for rest in (".abcdef", "-node1.abcdef"))
    left.write_bytes(b"half")
    others.write_bytes(b"half")
    file.unlink()
    assert packing.made()
    assert not left.exists()
    assert others.exists(), "a process may be writing the copy for a NUMA node"


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archive, "_pack", fail)
    with pytest.raises(LoadRefused, match=r"cannot keep .* packed weights: No space left.*--cache-dir"):
        open_plain(make_checkpoint(tmp_path / "model"), tmp_path)
    assert [file.suffix for file in (tmp_path / "weights").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_serves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path / "model")
    open_plain(path, tmp_path)
    (lock,) = (tmp_path / "weights").glob("*.lock")
    lock.unlink()
    lock.mkdir()  # opening it for writing fails, for root as well
    open_plain(path, tmp_path)
    make_checkpoint(path, seed=1)
    monkeypatch.setattr(archive, "_digest", lambda path, model, wanted: lock.stem)
    (file,) = (tmp_path / "weights").glob("*.safetensors")
    file.unlink()
    with pytest.raises(ArchiveError, match="cannot keep"):
        open_plain(path, tmp_path)


def test_the_least_recently_used_make_room_and_no_open_one_does(tmp_path: Path) -> None:
    def open_model(seed: int, max_bytes: int = 1 << 40) -> Archive:
        path = make_checkpoint(tmp_path / f"model{seed}", seed=seed)
        ops, quiet = PlainOps("float32"), lambda phase, done, total: None
        return open_at(path, ops, tmp_path, quiet, max_bytes=max_bytes)

    def names() -> set[str]:
        return {file.name for file in (tmp_path / "weights").glob("*.safetensors")}

    first, kept = open_model(1), names()
    size = first.nbytes
    open_model(2).close()
    old = names() - kept
    for at, file in enumerate([*kept, *old]):
        os.utime(tmp_path / "weights" / file, (at, at))
    open_model(3, 3 * size).close()
    assert names() > kept | old  # three fit to the byte
    third = names() - kept - old
    open_model(4, 3 * size - 1).close()
    assert names() & (kept | old | third) == kept  # two fit: the open one is the oldest, and stays
    first.close()
    open_model(5, size).close()
    assert len(names()) == 1
    assert not names() & kept


def test_a_copy_for_a_numa_node_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    weights, ops = open_weights(path), PlainOps("float32")
    wanted = stored_parameters(ModelConfig.from_dir(path), ops, weights, "none")
    for cpus in (WorkerCpus(1), WorkerCpus(1, nodes=(0, 1)), WorkerCpus(1, nodes=(1,), copy="node1")):
        place = replace(ArchivePlace.of(tmp_path, cpus, True), nodes=())  # this machine may have no second node
        open_archive(weights, config_digest(path), wanted, ops, place, lambda phase, done, total: None).close()
    base, copy = sorted((tmp_path / "weights").glob("*.safetensors"), key=lambda file: len(file.name))
    assert copy.name == f"{base.stem}-node1.safetensors"
    assert copy.read_bytes() == base.read_bytes()


def test_weights_that_are_not_mapped_are_copied(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    weights, ops = open_weights(path), PlainOps("float32")
    wanted = stored_parameters(ModelConfig.from_dir(path), ops, weights, "none")
    contents = []
    for mapped in (True, False):
        place = ArchivePlace(tmp_path, mapped=mapped)
        archive = open_archive(weights, config_digest(path), wanted, ops, place, lambda phase, done, total: None)
        contents.append({name: bytes(np.asarray(entry.file_view)) for name, entry in archive.index.items()})
        archive.close()
    assert contents[0] == contents[1]
