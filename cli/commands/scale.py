"""`baton scale`: places workers on a Ray cluster, and keeps as many of them as are wanted."""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
from rich.console import Console
from rich.table import Table

from actors.process.logs import configure_logging
from cli.client.administration import Administration
from cli.client.load_sample import LoadSample, take_sample
from cli.commands.serve import log_level
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.scaling.placement import ClusterEnded, ClusterLost, WorkerPlace, number_of_name
from cli.scaling.replica_target import ReplicaTarget, ScaleRange
from cli.scaling.scaler import TICK_S, Scaler, Superseded
from cli.scaling.terms import ScaleTerms, ray_address, scale_name
from cli.terminal.worker_table import WIDTH

if TYPE_CHECKING:
    from cli.scaling.ray_cluster import RayCluster

_log = structlog.get_logger("cli.commands.scale")


class HttpGateway:
    """Implements `ScaledGateway` by the routes of a server."""

    def __init__(self, client: Administration) -> None:
        self._client = client

    def look(self) -> LoadSample:
        """See `ScaledGateway`."""
        return take_sample(self._client)

    def make_token(self, name: str) -> tuple[str, str]:
        """See `ScaledGateway`."""
        made = self._client.post(f"/admin/workers/{name}/token")
        return str(made["token"]), str(made["server_key"])

    def remove(self, name: str) -> None:
        """See `ScaledGateway`."""
        self._client.operate(f"/admin/workers/{name}/remove", None, say=lambda line: _log.info("operation", did=line))


def scale_workers(settings: Settings, url: str) -> None:
    """Keep as many workers as are wanted until a signal arrives or another `baton scale` takes over; the workers stay.
    Raises `CommandFailed`."""
    terms = ScaleTerms.of(settings)
    cluster = _connect(settings, terms.prefix, terms.resources)
    configure_logging("scale", log_level(settings, sys.stderr.isatty()))
    ended = _ends_at_signals()
    try:
        with Administration.of(url, settings) as client:
            cluster.hold()
            target = ReplicaTarget(terms.bounds, len(cluster.places()))
            gateway = HttpGateway(client)
            scaler = Scaler(cluster, gateway, terms.prefix, target, lambda key: terms.arguments(settings, key))
            while not ended():
                scaler.tick(time.monotonic())
                time.sleep(TICK_S)
    except Superseded as reason:
        _log.info("scaling_ends", reason=str(reason))
    except (ClusterLost, ClusterEnded) as error:
        raise CommandFailed(str(error)) from error
    finally:
        cluster.close()


def stop_workers(settings: Settings, url: str) -> list[str]:
    """Drain and remove all workers of the name; a `baton scale` that runs ends. Returns their names. Raises
    `CommandFailed`."""
    prefix = scale_name(settings)
    cluster = _connect(settings, prefix, {})
    try:
        with Administration.of(url, settings) as client:
            cluster.hold()
            nobody = ReplicaTarget(ScaleRange(0, 0), 0)
            removed = Scaler(cluster, HttpGateway(client), prefix, nobody, lambda key: []).remove_all()
            cluster.release()
            return removed
    except ClusterLost as error:
        raise CommandFailed(str(error)) from error
    finally:
        cluster.close()


def show_places(settings: Settings, url: str) -> None:
    """Print the places on the cluster, and what the gateway says of their workers. Raises `CommandFailed`."""
    prefix = scale_name(settings)
    cluster = _connect(settings, prefix, {})
    try:
        with Administration.of(url, settings) as client:
            known = {each["name"]: each for each in take_sample(client).workers}
        places = cluster.places()
    except ClusterLost as error:
        raise CommandFailed(str(error)) from error
    finally:
        cluster.close()
    print_places(prefix, places, known)


def print_places(prefix: str, places: Mapping[str, WorkerPlace], known: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line for each worker of the name: its place, and what the gateway, which `known` is from, says."""
    ours = {name for name in (*places, *known) if number_of_name(prefix, name) is not None}
    table = Table("name", "place", "machine", "pid", "gateway", "why", box=None)
    for name in sorted(ours, key=lambda name: number_of_name(prefix, name) or 0):
        place, worker = places.get(name), known.get(name)
        table.add_row(
            name,
            "none" if place is None else place.state,
            "-" if place is None else place.machine or "-",
            "-" if place is None or not place.pid else str(place.pid),
            "unknown" if worker is None else worker["state"],
            (place.why if place is not None else "") or (worker["reason"] if worker is not None else ""),
        )
    # The table is not fitted to the terminal, so that no cell is truncated. Reasons are shown as they are.
    Console(highlight=False, markup=False, emoji=False, width=WIDTH).print(table)


def _connect(settings: Settings, prefix: str, resources: Mapping[str, float]) -> "RayCluster":
    """Connect to the cluster. Raises `CommandFailed`, also without the package of Ray."""
    address = ray_address(settings)
    try:
        from cli.scaling.ray_cluster import RayCluster
    except ImportError as error:
        raise CommandFailed(f"--ray needs the package of Ray ({error}): pip install 'baton-serve[ray]'") from error
    try:
        return RayCluster(address, prefix, resources)
    except ClusterLost as error:
        raise CommandFailed(f"--ray: {error}") from error


def _ends_at_signals() -> Callable[[], bool]:
    """Return whether SIGINT or SIGTERM has come: what is under way is done first."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        _log.info("signal", name=signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return lambda: bool(came)
