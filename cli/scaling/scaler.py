"""Keeps as many workers on a cluster as are wanted: reconciles the places with the plan, and the plan with the load."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from actors.supervision.restart_policy import MAX_REMEMBERED, RestartPolicy
from cli.client.load_sample import LoadSample
from cli.config.errors import CommandFailed
from cli.scaling.placement import (
    ClusterLost,
    CreatePlace,
    PlaceAction,
    PlaceState,
    RemovePlace,
    StartIn,
    WorkerCluster,
    WorkerPlace,
    actions,
    number_of_name,
)
from cli.scaling.replica_target import FleetLoad, ReplicaTarget

TICK_S = 1.0
"""Between two looks at the cluster and the gateway."""
RETRY = RestartPolicy(max_failures=None, window_s=300.0, first_delay_s=1.0, max_delay_s=60.0)
"""Delays between the starts of a worker that ends again and again."""

_log = structlog.get_logger("cli.scaling.scaler")


class Superseded(Exception):
    """Raised when another `baton scale` of the same name has begun to decide."""


class ScaledGateway(Protocol):
    """The gateway whose workers are placed. All methods raise `CommandFailed`."""

    def look(self) -> LoadSample:
        """Return its workers and its metrics."""

    def make_token(self, name: str) -> tuple[str, str]:
        """Make a one-time token for a worker. Returns it and the public key of the gateway."""

    def remove(self, name: str) -> None:
        """Drain a worker and forget it."""


@dataclass
class _Ends:
    """The ends of one worker."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))
    pid: int = 0
    """The process whose end was noted last."""


class Scaler:
    """Owns what was decided about the places of one name. Each tick looks at all, and does what the plan says; nothing
    of it is needed to go on after a restart."""

    def __init__(
        self,
        cluster: WorkerCluster,
        gateway: ScaledGateway,
        prefix: str,
        target: ReplicaTarget,
        arguments: Callable[[str], Sequence[str]],
    ) -> None:
        """`arguments` returns the command line of a worker from the gateway's public key."""
        self._cluster = cluster
        self._gateway = gateway
        self._prefix = prefix
        self._target = target
        self._arguments = arguments
        self._ends: dict[str, _Ends] = {}
        self._due: dict[str, float] = {}
        self._states: Mapping[str, PlaceState] = {}
        self._waits: Mapping[str, str] = {}
        self._incomplete_since: float | None = None
        self._problem = ""

    def tick(self, now: float) -> None:
        """Look and act, once. `now` is a time of a steady clock. Raises `Superseded` and `ClusterEnded`. Problems of
        the gateway and the cluster are logged, and what could not be done is done in a later tick."""
        try:
            if not self._cluster.holds():
                raise Superseded(f"another `baton scale` decides about {self._prefix} now")
            sample = self._gateway.look()
            places = self._cluster.places()
            self._note(places, now)
            ready = self._ready(sample)
            before = self._target.wanted
            wanted = self._target.update(self._load(sample), len(ready), now)
            if wanted != before:
                _log.info("replicas_changed", workers=wanted, before=before)
            for action in actions(self._prefix, wanted, places, self._due, now):
                self._do(action, sample)
            for name in self._strays(sample, places, wanted):
                self._gateway.remove(name)
            self._report(ready, wanted, now)
            self._problem = ""
        except (CommandFailed, ClusterLost) as error:
            if str(error) != self._problem:
                _log.warning("scaling_waits", reason=str(error))
            self._problem = str(error)

    def remove_all(self) -> list[str]:
        """Drain and remove the workers of all places, the last one first. Returns their names. Raises `CommandFailed`
        and `ClusterLost`."""
        sample = self._gateway.look()
        removed = []
        for action in actions(self._prefix, 0, self._cluster.places(), {}, 0.0):
            self._do(action, sample)
            removed.append(action.name)
        return removed

    def _do(self, action: PlaceAction, sample: LoadSample) -> None:
        match action:
            case CreatePlace(name):
                _log.info("place_wanted", worker=name)
                self._cluster.create(name)
            case StartIn(name):
                token, server_key = self._gateway.make_token(name)
                self._cluster.start(name, [*self._arguments(server_key)], {"BATON_JOIN_TOKEN": token})
                _log.info("worker_starts", worker=name)
            case RemovePlace(name):
                if any(each["name"] == name for each in sample.workers):
                    self._gateway.remove(name)
                self._cluster.remove(name)
                _log.info("place_given_up", worker=name)

    def _note(self, places: Mapping[str, WorkerPlace], now: float) -> None:
        """Log what has changed, and when ended workers are due."""
        for name in self._states.keys() - places.keys():
            _log.warning("place_lost", worker=name)
        for name, place in places.items():
            if place.state is PlaceState.PENDING and place.why and place.why != self._waits.get(name):
                _log.warning("place_waits", worker=name, reason=place.why)
            ends = self._ends.setdefault(name, _Ends())
            if place.state is PlaceState.ENDED and place.pid != ends.pid:
                ends.pid = place.pid
                ends.times.append(now)
                delay_s = RETRY.delay_s(ends.times, now)
                self._due[name] = now + delay_s
                _log.warning("worker_ended", worker=name, machine=place.machine, reason=place.why, delay_s=delay_s)
            elif place.state is not self._states.get(name) and place.state is not PlaceState.ENDED:
                _log.info("place_changed", worker=name, machine=place.machine, state=place.state)
        self._states = {name: place.state for name, place in places.items()}
        self._waits = {name: place.why for name, place in places.items()}

    def _report(self, ready: Sequence[str], wanted: int, now: float) -> None:
        """Log when the fleet is complete again, and how long that took."""
        if len(ready) < wanted:
            if self._incomplete_since is None:
                self._incomplete_since = now
                _log.info("fleet_incomplete", ready=len(ready), wanted=wanted)
        elif self._incomplete_since is not None:
            _log.info("fleet_complete", workers=wanted, after_s=round(now - self._incomplete_since, 1))
            self._incomplete_since = None

    def _of_ours(self, sample: LoadSample) -> list[dict[str, Any]]:
        return [each for each in sample.workers if number_of_name(self._prefix, each["name"]) is not None]

    def _strays(self, sample: LoadSample, places: Mapping[str, WorkerPlace], wanted: int) -> list[str]:
        """The workers that the gateway still awaits, and that are not wanted and have no place any more."""
        lost = [each["name"] for each in self._of_ours(sample) if each["state"] != "ready"]
        return [name for name in lost if name not in places and (number_of_name(self._prefix, name) or 0) >= wanted]

    def _ready(self, sample: LoadSample) -> list[str]:
        return [each["name"] for each in self._of_ours(sample) if each["state"] == "ready"]

    def _load(self, sample: LoadSample) -> FleetLoad:
        """The load of the models that our workers serve. Their other workers share it."""
        models = {each["model"] for each in self._of_ours(sample)}
        serving = [each for each in sample.workers if each["model"] in models and each["state"] == "ready"]
        waiting = sum(sample.total("baton_waiting_sequences", model=model) for model in models)
        return FleetLoad(
            waiting=int(waiting) + sum(each["queue_depth"] for each in serving),
            active=sum(each["slots_active"] for each in serving),
            slots=sum(each["slots_total"] for each in serving),
        )
