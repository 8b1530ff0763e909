"""A cluster and a gateway in memory, for the scaler."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cli.client.load_sample import LoadSample
from cli.config.errors import CommandFailed
from cli.scaling.placement import ClusterLost, PlaceState, WorkerPlace


class FakeCluster:
    """Places with room for as many as `room`; `log` has what was done."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.held = True
        self.lost = ""
        self.found: dict[str, WorkerPlace] = {}
        self.log: list[str] = []
        self.started: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._pids = iter(range(1, 1000))

    def hold(self) -> None:
        self.held = True

    def holds(self) -> bool:
        return self.held

    def places(self) -> dict[str, WorkerPlace]:
        if self.lost:
            raise ClusterLost(self.lost)
        free = self.room - sum(each.state is not PlaceState.PENDING for each in self.found.values())
        for name in [name for name, each in self.found.items() if each.state is PlaceState.PENDING][: max(0, free)]:
            self.become(name, PlaceState.EMPTY, machine="there")
        return dict(self.found)

    def create(self, name: str) -> None:
        self.log.append(f"create {name}")
        self.found[name] = WorkerPlace(name, PlaceState.PENDING)

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.log.append(f"start {name}")
        self.started[name] = (arguments, dict(environment))
        self.become(name, PlaceState.RUNNING, pid=next(self._pids))

    def remove(self, name: str) -> None:
        self.log.append(f"remove {name}")
        self.found.pop(name, None)

    def close(self) -> None:
        self.log.append("close")

    def become(self, name: str, state: PlaceState, **fields: Any) -> None:
        self.found[name] = replace(self.found[name], state=state, **fields)


class FakeGateway:
    """A gateway that workers have joined whose places run, as far as the test lets them."""

    def __init__(self) -> None:
        self.workers: dict[str, dict[str, Any]] = {}
        self.waiting = 0
        self.refuses = ""
        self.log: list[str] = []

    def look(self) -> LoadSample:
        if self.refuses:
            raise CommandFailed(self.refuses)
        values: Any = {"baton_waiting_sequences": {(("model", "m"),): float(self.waiting)}}
        return LoadSample(0.0, list(self.workers.values()), values)

    def make_token(self, name: str) -> tuple[str, str]:
        self.log.append(f"token {name}")
        return f"token-of-{name}", "server-key"

    def remove(self, name: str) -> None:
        self.log.append(f"remove {name}")
        del self.workers[name]

    def joins(self, *names: str, state: str = "ready", active: int = 0, queue: int = 0) -> None:
        for name in names:
            self.workers[name] = {
                "name": name,
                "model": "m",
                "state": state,
                "slots_active": active,
                "slots_total": 8,
                "queue_depth": queue,
            }
