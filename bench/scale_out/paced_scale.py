"""Child process of `bench/scale_out/ray_node_loss.py`: `baton scale` that places the workers of `paced_worker.py`.

Run as `python bench/scale_out/paced_scale.py` with the arguments of `baton`.
"""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cli.main import run
from cli.scaling import ray_cluster

if __name__ == "__main__":
    module = "bench.scale_out.paced_worker"
    ray_cluster.RayCluster = functools.partial(ray_cluster.RayCluster, module=module)  # type: ignore[assignment, misc]
    run()
