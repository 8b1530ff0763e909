"""Child process of `bench/scale_out/ray_node_loss.py`: a Ray cluster on this machine, whose nodes can be lost.

`python bench/scale_out/ray_nodes.py N` starts it with N nodes, each with one CPU of Ray's, beside a head without any,
and prints one JSON object a line: the address, then the answer to each line on stdin. `add` adds a node. `lose I` ends
node I as a machine is lost: all of its processes get SIGKILL, also those that have left Ray's sessions. `lose-head`
ends the head so. `freeze I` stops the processes of node I: it sends nothing more, as a machine behind a partition.
`thaw I` lets them go on. The end of stdin ends the cluster, and all that was started on it.
"""

import contextlib
import json
import signal
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20
"""Nearly the minimum that Ray accepts. The workers keep nothing in it."""
QUIET = {"include_dashboard": False, "object_store_memory": STORE_BYTES}


class KilledNodes:
    """Owns the cluster, and knows each process that was started on it."""

    def __init__(self, count: int) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **QUIET})
        self._nodes: list[Any] = []
        self._frozen: dict[int, list[psutil.Process]] = {}
        self._seen: set[psutil.Process] = set()
        for _ in range(count):
            self.add()

    def do(self, words: list[str]) -> dict[str, Any]:
        """Carry a command out. Returns the answer."""
        for node in self.cluster.list_all_nodes():
            self._seen.update(processes_of(node))
        match words:
            case ["add"]:
                return {"added": self.add()}
            case ["lose", number]:
                return {"processes": self._lose(self._nodes[int(number)])}
            case ["lose-head"]:
                return {"processes": self._lose(self.cluster.head_node)}
            case ["freeze", number]:
                self._frozen[int(number)] = stopped = processes_of(self._nodes[int(number)])
                for process in stopped:
                    process.suspend()
                return {"processes": len(stopped)}
            case ["thaw", number]:
                for process in self._frozen.pop(int(number)):
                    process.resume()
                return {}
        raise ValueError(f"unknown command: {words}")

    def add(self) -> int:
        """Start a node. Returns its number."""
        self._nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES))
        return len(self._nodes) - 1

    def close(self) -> None:
        """End everything."""
        for number in list(self._frozen):
            self.do(["thaw", str(number)])
        for node in self.cluster.list_all_nodes():
            self._seen.update(processes_of(node))
        self.cluster.shutdown()
        for process in filter(psutil.Process.is_running, self._seen):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _lose(self, node: Any) -> int:
        """Kill all processes of a node. Returns their number."""
        processes = processes_of(node)
        for process in processes:
            process.kill()
        self.cluster.remove_node(node, allow_graceful=False)
        return len(processes)


def processes_of(node: Any) -> list[psutil.Process]:
    """The processes of a node, and those that they have started. None if it has ended."""
    try:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [raylet, *raylet.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def say(answer: dict[str, Any]) -> None:
    """Print an answer."""
    print(json.dumps(answer), flush=True)


def main(count: int) -> None:
    """Serve commands until the end of stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nodes = KilledNodes(count)
    try:
        say({"address": nodes.cluster.address})
        for line in sys.stdin:
            say(nodes.do(line.split()))
    finally:
        nodes.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
