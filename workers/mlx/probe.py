"""Probe MLX's devices with one small matrix product each."""

import sys

import numpy as np

from workers.host.probe import Probe, short

ADVICE = "on Linux: pip install 'mlx[cpu]', or 'mlx[cuda]' with an NVIDIA GPU"


def probe() -> list[Probe]:
    """Probe the CPU and the GPU. Raises `ImportError` when MLX is not installed."""
    import mlx.core as mx

    lines = []
    for name, device in (("cpu", mx.cpu), ("gpu", mx.gpu)):
        try:
            if name == "gpu" and not mx.is_available(mx.gpu):
                lines.append(Probe("mlx", name, False, "this build of MLX has no GPU here", gpu_advice()))
                continue
            lines.append(_try(mx.Device(device), name, mx))
        except Exception as error:  # noqa: BLE001 - whatever a device raises is what the reader came to see
            lines.append(Probe("mlx", name, False, short(error), ADVICE))
    return lines


def _try(device, name: str, mx) -> Probe:  # type: ignore[no-untyped-def]  # mlx's stubs are not followed
    a = np.arange(64, dtype=np.float32).reshape(8, 8) / 8
    b = np.eye(8, dtype=np.float32)[::-1].copy()
    with mx.stream(device):
        product = mx.array(a) @ mx.array(b)
        mx.eval(product)
    if not np.allclose(np.array(product), a @ b):
        return Probe("mlx", name, False, "a matrix product came out wrong")
    return Probe("mlx", name, True, f"matrix product right, MLX {mx.__version__}")


def verifies_drafts(device: str) -> bool:
    """Return whether decode steps on a device can verify drafted tokens: on a CPU rows of several have the bits of one
    alone. The default device "" is taken for a GPU on macOS only."""
    return device == "cpu" or (not device and sys.platform != "darwin")


def gpu_advice() -> str:
    """Return the advice to install MLX with a GPU; empty on macOS, where there is only one build."""
    return "" if sys.platform == "darwin" else "with an NVIDIA GPU: pip install 'mlx[cuda]'"
