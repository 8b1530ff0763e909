"""The MLX runner: the only package that imports mlx and mlx-lm."""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any


def _import_models_alone() -> None:
    """Let `mlx_lm.models` be imported without the rest of `mlx_lm`, which is imported with the first of its names.

    The rest is commands. They import transformers and, where it is installed, torch: two seconds of a worker's start.
    """
    spec = find_spec("mlx_lm")
    if spec is None or spec.loader is None or "mlx_lm" in sys.modules:
        return
    loader, package = spec.loader, module_from_spec(spec)

    def rest(name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module 'mlx_lm' has no attribute {name!r}")
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = rest
    sys.modules["mlx_lm"] = package


_import_models_alone()
