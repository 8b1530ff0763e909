"""Probes of IREE's drivers: each compiles and runs a small matrix product, as a model's graphs would be."""

import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np
from iree.compiler import compile_str

from workers.host.probe import Probe, short
from workers.iree.device.device import Device, DeviceError, available_drivers
from workers.iree.device.gpu import NEEDS

SIZE = 8
PRODUCT = f"""
func.func @product(%a: tensor<{SIZE}x{SIZE}xf32>, %b: tensor<{SIZE}x{SIZE}xf32>) -> tensor<{SIZE}x{SIZE}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{SIZE}x{SIZE}xf32>
  %clear = linalg.fill ins(%zero : f32) outs(%empty : tensor<{SIZE}x{SIZE}xf32>) -> tensor<{SIZE}x{SIZE}xf32>
  %product = linalg.matmul ins(%a, %b : tensor<{SIZE}x{SIZE}xf32>, tensor<{SIZE}x{SIZE}xf32>)
      outs(%clear : tensor<{SIZE}x{SIZE}xf32>) -> tensor<{SIZE}x{SIZE}xf32>
  return %product : tensor<{SIZE}x{SIZE}xf32>
}}
"""


def probe() -> list[Probe]:
    """Probe every driver of the runtime. Raises `ImportError` when the IREE packages are not installed."""
    return [probe_driver(name) for name in available_drivers()]


def probe_driver(name: str) -> Probe:
    """Run a matrix product on the driver's first device."""
    advice = NEEDS.get(name, "")
    try:
        device = Device(name, 1)
        works = _is_right(device)
    except DeviceError as error:  # the driver's own message is enough
        return Probe("iree", name, False, short(error.__cause__ or error), advice)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises is the result of the probe
        return Probe("iree", name, False, short(error), advice)
    if not works:
        return Probe("iree", name, False, "a matrix product came out wrong")
    where = f" on {device.name}" if device.name else ""
    return Probe("iree", name, True, f"matrix product right{where}, IREE {metadata.version('iree-base-runtime')}")


def _is_right(device: Device) -> bool:
    a = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE) / SIZE
    b = np.eye(SIZE, dtype=np.float32)[::-1].copy()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "product.vmfb"
        compile_str(PRODUCT, output_file=str(file), extra_args=list(device.compile_flags()))
        module = device.load(file, None, "")
        (product,) = module.call("product", device.upload(a), device.upload(b))
        right = bool(np.allclose(device.download(product), a @ b))
        del module, product
        device.close()
    return right
