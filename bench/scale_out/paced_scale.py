"""Child process of `bench/scale_out/ray_node_loss.py`: `baton scale` that places the workers of `paced_worker.py`."""

import functools

from cli.main import run
from cli.scaling import ray_cluster

if __name__ == "__main__":
    module = "bench.scale_out.paced_worker"
    ray_cluster.RayCluster = functools.partial(ray_cluster.RayCluster, module=module)  # type: ignore[assignment, misc]
    run()
