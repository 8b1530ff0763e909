"""The workers that are placed on a cluster, and what is to be done about them. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class PlaceState(StrEnum):
    """The state of a place: an actor of the cluster, in which one worker runs."""

    PENDING = "pending"
    """No machine has room for it yet."""
    EMPTY = "empty"
    """It has a machine, and its worker was not started."""
    RUNNING = "running"
    ENDED = "ended"
    """Its worker has ended."""
    UNREACHABLE = "unreachable"
    """It does not answer. The cluster decides whether its machine is lost; then the place is gone."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One place."""

    name: str
    state: PlaceState
    machine: str = ""
    pid: int = 0
    """The process of its worker, on that machine."""
    why: str = ""
    """Why its worker has ended, or why no machine of the cluster can ever have room."""


@dataclass(frozen=True, slots=True)
class CreatePlace:
    """Ask the cluster for a place."""

    name: str


@dataclass(frozen=True, slots=True)
class StartIn:
    """Start the worker of a place."""

    name: str


@dataclass(frozen=True, slots=True)
class RemovePlace:
    """Drain the worker of a place, and give up the place."""

    name: str


PlaceAction = CreatePlace | StartIn | RemovePlace


class WorkerCluster(Protocol):
    """A cluster with places for workers. All methods answer within seconds, and raise `ClusterLost` if the cluster does
    not answer at all; `holds` raises `ClusterEnded` if it is to be given up."""

    def hold(self) -> None:
        """Become the one that decides about the places of this name, instead of any other."""

    def holds(self) -> bool:
        """Return false once another process has become the one."""

    def places(self) -> dict[str, WorkerPlace]:
        """Return the places that there are, by the names of their workers."""

    def create(self, name: str) -> None:
        """Ask for a place. It is there at once, and gets a machine when one has room."""

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        """Start `baton` with these arguments in a place, in a session of its own."""

    def remove(self, name: str) -> None:
        """Stop what runs in a place, and give up the place. No effect on one that is gone."""

    def close(self) -> None:
        """Leave the cluster. The places stay."""


class ClusterLost(Exception):
    """Raised when the cluster cannot be reached, or has refused something; the message has the reason."""


class ClusterEnded(Exception):
    """Raised when the cluster has not answered for so long that the connection to it is of no more use."""


def names_of(prefix: str, count: int) -> list[str]:
    """The names of so many workers."""
    return [f"{prefix}-{number}" for number in range(count)]


def number_of_name(prefix: str, name: str) -> int | None:
    """The number in the name of a worker; None for a name that is not one of `names_of`."""
    found = re.fullmatch(rf"{re.escape(prefix)}-(0|[1-9][0-9]{{0,4}})", name)
    return None if found is None else int(found[1])


def actions(
    prefix: str, wanted: int, places: Mapping[str, WorkerPlace], due: Mapping[str, float], now: float
) -> list[PlaceAction]:
    """Return what leads to so many workers. A worker that has ended is started again when it is `due`."""
    return [*_fill(names_of(prefix, wanted), places, due, now), *_shrink(prefix, wanted, places)]


def _fill(
    names: Iterable[str], places: Mapping[str, WorkerPlace], due: Mapping[str, float], now: float
) -> Iterable[PlaceAction]:
    for name in names:
        place = places.get(name)
        if place is None:
            yield CreatePlace(name)
        elif place.state is PlaceState.EMPTY or (place.state is PlaceState.ENDED and due.get(name, now) <= now):
            yield StartIn(name)


def _shrink(prefix: str, wanted: int, places: Mapping[str, WorkerPlace]) -> Iterable[PlaceAction]:
    """The places beyond those that are wanted, the last one first."""
    numbers = {number: name for name in places if (number := number_of_name(prefix, name)) is not None}
    return [RemovePlace(numbers[number]) for number in sorted(numbers, reverse=True) if number >= wanted]
