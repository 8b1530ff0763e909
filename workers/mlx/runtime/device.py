"""MLX's device, and the one thread that may use it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from workers.errors import LoadRefused
from workers.load_options import Progress
from workers.mlx.probe import gpu_advice

TENSORS_PER_STEP = 16


class OwnedDevice:
    """A device that only the thread that made this object may use, until it is closed."""

    def __init__(self, device: mx.Device) -> None:
        self.device = device
        self.closed = False
        self._thread = threading.get_ident()

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Check the thread and select the device. MLX ties lazy arrays and streams to a thread: another one would hang
        or read unfinished work."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("an MLX runner is used only by the thread that loaded it")
        if self.closed:
            raise RuntimeError("the runner is closed")
        with mx.stream(self.device):
            yield


def maybe_set_recommended_wired_limit() -> None:
    """Wire as much memory as the device recommends, if it does, as `mlx_lm.utils` does, which imports transformers."""
    limit = mx.device_info().get("max_recommended_working_set_size")
    if isinstance(limit, int):
        mx.set_wired_limit(limit)


def choose_device(device: str) -> tuple[str, mx.Device]:
    """Find "cpu", "gpu" (Metal or CUDA) or, for "", the best device: its name and MLX's device.

    Raises `LoadRefused` when this machine does not have it.
    """
    available = {"cpu": mx.Device(mx.cpu)}
    if mx.is_available(mx.Device(mx.gpu)):
        available["gpu"] = mx.Device(mx.gpu)
    name = device or list(available)[-1]
    if name not in available:
        advice = f"; {advice}" if name == "gpu" and (advice := gpu_advice()) else ""
        raise LoadRefused(
            f"device: {device!r} is not a device of MLX on this machine, which has {' and '.join(available)}: set "
            f"--device {list(available)[-1]}{advice}. `baton doctor` shows which devices work here"
        )
    return name, available[name]


def adds_in_order(device: mx.Device) -> bool:
    """Return whether MLX adds one term after the other there, so that neither zeros nor another layout change a sum.

    On macOS its CPU backend adds in SIMD lanes, and which terms share a lane depends on the number of keys.
    """
    return bool(device.type == mx.cpu) and sys.platform != "darwin"


def evaluate_weights(model: Any, progress: Progress) -> None:
    """Read the weights into memory, a few tensors at a time."""
    arrays = [array for _, array in tree_flatten(model.parameters())]
    for first in range(0, len(arrays), TENSORS_PER_STEP):
        progress("weights", first, len(arrays))
        mx.eval(arrays[first : first + TENSORS_PER_STEP])
    progress("weights", len(arrays), len(arrays))
