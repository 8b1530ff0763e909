"""A worker that finds its graphs in the cache imports neither JAX nor the compiler."""

import subprocess
import sys
from pathlib import Path

from tests.workers.iree.conftest import CONTEXT
from workers.iree.runner import IreeRunner

SCRIPT = f"""
import sys
from pathlib import Path
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner
from workers.load_options import LoadOptions
from workers.sampling.sample_spec import SampleSpec
from protocol.request import Sampling

path = Path(sys.argv[1])
options = LoadOptions(
    device="local-task", dtype="float32", slots=8, context={CONTEXT}, cache_dir=Path(sys.argv[2])
)
spec = SampleSpec(Sampling(), 1)
runner = IreeRunner.load(path, ModelConfig.from_dir(path), options, lambda *_: None, background=False)
(token,) = runner.prefill([Chunk(0, (1, 2, 3), 0, 0)], [spec])
runner.decode([DecodeRow(0, token, 3, 3, spec)])
runner.close()
assert not {{"jax", "jaxlib", "iree.compiler"}} & sys.modules.keys()
"""


def test_a_worker_with_compiled_graphs_imports_no_jax(
    shared_runner: IreeRunner, checkpoint: Path, cache_dir: Path
) -> None:
    assert shared_runner.capabilities.context == CONTEXT
    command = [sys.executable, "-c", SCRIPT, str(checkpoint), str(cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
