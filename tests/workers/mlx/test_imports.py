"""A worker with MLX imports the models of mlx-lm, and the rest of that package only when it is used."""

import subprocess
import sys

import pytest

pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")

SCRIPT = """
import sys
import workers.mlx.runner
assert "mlx_lm.models.gemma2" in sys.modules
assert not {"transformers", "torch", "mlx_lm.utils"} & sys.modules.keys()
assert not hasattr(sys.modules["mlx_lm"], "__wrapped__")
import mlx_lm
assert "mlx_lm.utils" not in sys.modules
assert mlx_lm.__version__
from mlx_lm import load
assert load is mlx_lm.utils.load
try:
    mlx_lm.nothing
except AttributeError:
    print("done")
"""


def test_a_worker_imports_no_commands_of_mlx_lm() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
