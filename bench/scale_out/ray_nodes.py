"""Child process of `bench/scale_out/ray_node_loss.py`: a Ray cluster on this machine, whose nodes can be lost.

`python bench/scale_out/ray_nodes.py N` starts it with N nodes, each with one CPU of Ray's, beside a head without any,
and prints one JSON object a line: the address, then the answer to each line on stdin. `add` adds a node. `lose I` ends
node I as a machine is lost: all of its processes get SIGKILL, also those that have left Ray's sessions. The end of
stdin ends the cluster.
"""

import json
import signal
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20
"""Nearly the minimum that Ray accepts. The workers keep nothing in it."""
QUIET = {"include_dashboard": False, "object_store_memory": STORE_BYTES}


def main(count: int) -> None:
    """Serve commands until the end of stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **QUIET})
    nodes = [add(cluster) for _ in range(count)]
    try:
        say(address=cluster.address)
        for line in sys.stdin:
            match line.split():
                case ["add"]:
                    nodes.append(add(cluster))
                    say(added=len(nodes) - 1)
                case ["lose", number]:
                    say(lost=int(number), processes=lose(cluster, nodes[int(number)]))
                case ["lose-head"]:
                    say(lost="head", processes=lose(cluster, cluster.head_node))
    finally:
        cluster.shutdown()


def add(cluster: Any) -> Any:
    """Start a node."""
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def lose(cluster: Any, node: Any) -> int:
    """Kill all processes of a node. Returns their number."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    processes = [raylet, *raylet.children(recursive=True)]
    for process in processes:
        process.kill()
    cluster.remove_node(node, allow_graceful=False)
    return len(processes)


def say(**fields: Any) -> None:
    """Print an answer."""
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
