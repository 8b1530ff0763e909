"""`baton scale` that places the workers of `paced_worker`."""

import functools

from cli.main import run
from cli.scaling import ray_cluster

ray_cluster.RayCluster = functools.partial(  # type: ignore[assignment, misc]
    ray_cluster.RayCluster, module="tests.cli.scaling.paced_worker"
)

if __name__ == "__main__":
    run()
