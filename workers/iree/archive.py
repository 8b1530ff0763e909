"""The model's weights as the device wants them: packed once into one IREE parameter archive that is kept on disk.

The archive is mapped, not read: graphs and processes share its pages, and no second copy of the weights is made.
"""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.checkpoint import ModelConfig, Weights, config_digest, open_weights
from workers.iree.model import Parameter, parameters
from workers.iree.ops import Ops, Shape

FORMAT = 1
"""Raise it when the contents of an archive change for the same key."""

_NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
Progress = Callable[[str, int, int], None]


def stored_shape(parameter: Parameter, ops: Ops) -> Shape:
    """The parameter's shape in the archive."""
    tail = parameter.sources[0][1][1:]
    return ops.stored_shape(parameter.rows, *tail) if parameter.matrix else (parameter.rows, *tail)


def open_archive(
    path: Path, config: ModelConfig, ops: Ops, cache_dir: Path, progress: Progress
) -> tuple[rt.ParameterIndex, int]:
    """The parameters of the checkpoint at `path`, and their bytes; made on first use, then found in `cache_dir`.

    Raises `CheckpointError` for tensors that are missing or have another shape than config.json says.
    """
    folder = cache_dir / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{_digest(path, ops)}.irpa"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _whole(file):
            _write(file, path, config, ops, progress)
    index = rt.ParameterIndex()
    index.load(str(file), "irpa")
    return index, file.stat().st_size


def _digest(path: Path, ops: Ops) -> str:
    """Of the checkpoint's content and of the layout. Times count too: they tell weights that were trained on."""
    stamps = [(file.name, file.stat().st_mtime_ns) for file in sorted(path.glob("*.safetensors"))]
    layout = [ops.dtype, ops.stored_shape(64, 64)]
    parts = [FORMAT, config_digest(path), stamps, layout]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _whole(file: Path) -> bool:
    """The archive was written to its end: its size is recorded after it."""
    try:
        return file.stat().st_size == int(file.with_suffix(".size").read_text())
    except (OSError, ValueError):
        return False


def _write(file: Path, path: Path, config: ModelConfig, ops: Ops, progress: Progress) -> None:
    weights = open_weights(path)
    wanted = parameters(config, ops.dtype)
    arrays: dict[str, NDArray[Any]] = {}
    for done, parameter in enumerate(wanted):
        progress("pack weights", done, len(wanted))
        arrays[parameter.name] = _bits(_build(parameter, weights, ops))
    handle, temporary = tempfile.mkstemp(prefix=file.stem, suffix=".tmp", dir=file.parent)
    os.close(handle)
    try:
        rt.save_archive_file(arrays, temporary)
        size = Path(temporary).stat().st_size
        os.replace(temporary, file)
        file.with_suffix(".size").write_text(str(size))
    finally:
        Path(temporary).unlink(missing_ok=True)
    progress("pack weights", len(wanted), len(wanted))


def _build(parameter: Parameter, weights: Weights, ops: Ops) -> NDArray[Any]:
    parts = [weights.take(name, shape) for name, shape in parameter.sources]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    whole = whole.astype(_NUMPY[parameter.dtype], copy=False)
    return ops.store(whole) if parameter.matrix else whole


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """Two-byte types as integers: Python's buffer protocol has no bfloat16."""
    return np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint32)


def as_arrays(config: ModelConfig, ops: Ops) -> Mapping[str, tuple[Shape, str]]:
    """Name -> (stored shape, dtype) of every parameter."""
    return {p.name: (stored_shape(p, ops), p.dtype) for p in parameters(config, ops.dtype)}
