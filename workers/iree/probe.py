"""Try every IREE driver that the runtime has: list its devices, compile a small matrix product for it and run it."""

from importlib import metadata
from typing import Any

import numpy as np

from workers.iree.gpu import GPU_TARGETS, architecture_flags, gpu_architecture
from workers.probe import Probe, short

TARGETS = {
    "local-sync": ("llvm-cpu", ["--iree-hal-target-device=local", "--iree-llvmcpu-target-cpu=host"]),
    "local-task": ("llvm-cpu", ["--iree-hal-target-device=local", "--iree-llvmcpu-target-cpu=host"]),
    "cuda": ("cuda", ["--iree-hal-target-device=cuda"]),
    "hip": ("rocm", ["--iree-hal-target-device=hip"]),
    "vulkan": ("vulkan-spirv", ["--iree-hal-target-device=vulkan"]),
    "metal": ("metal-spirv", ["--iree-hal-target-device=metal"]),
}
"""What the compiler calls the target of a runtime driver, and the flags it needs."""

ADVICE = {
    "cuda": "needs an NVIDIA GPU and its driver (libcuda)",
    "hip": "needs an AMD GPU and ROCm (libamdhip64)",
    "vulkan": "needs a GPU with a Vulkan driver, such as mesa-vulkan-drivers",
}

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
    """One line a driver. Raises `ImportError` when the IREE packages are not installed."""
    import iree.compiler as compiler
    import iree.runtime as runtime

    found = [_probe_driver(name, compiler, runtime) for name in sorted(runtime.query_available_drivers())]
    version = metadata.version("iree-base-runtime")
    return [
        Probe(line.backend, line.device, line.works, f"{line.detail}, IREE {version}", line.advice)
        if line.works
        else line
        for line in found
    ]


def _probe_driver(name: str, compiler: Any, runtime: Any) -> Probe:
    advice = ADVICE.get(name, "")
    if name not in TARGETS:
        return Probe("iree", name, False, "Baton does not compile for this driver")
    try:
        devices = runtime.get_driver(name).query_available_devices()
    except Exception as error:  # noqa: BLE001 - whatever a driver raises is what the reader came to see
        return Probe("iree", name, False, short(error), advice)
    if not devices:
        return Probe("iree", name, False, "the driver finds no device", advice)
    target, flags = TARGETS[name]
    try:
        architecture = architecture_flags(name, gpu_architecture(name)) if name in GPU_TARGETS else ()
        module = compiler.compile_str(PRODUCT, target_backends=[target], extra_args=[*flags, *architecture])
        if not _is_right(module, name, runtime):
            return Probe("iree", name, False, "a matrix product came out wrong")
    except Exception as error:  # noqa: BLE001 - as above
        return Probe("iree", name, False, short(error), advice)
    label = ", ".join(str(device["name"]) for device in devices if device.get("name") not in (None, "", "default"))
    return Probe("iree", name, True, f"matrix product right{f' on {label}' if label else ''}")


def _is_right(module: bytes, driver: str, runtime: Any) -> bool:
    config = runtime.Config(device=runtime.get_driver(driver).create_default_device())
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, module))
    a = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE) / SIZE
    b = np.eye(SIZE, dtype=np.float32)[::-1].copy()
    product = context.modules.module.product(a, b).to_host()
    return bool(np.allclose(product, a @ b))
