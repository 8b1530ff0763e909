"""Places on a Ray cluster: a detached named actor each. The only import of ray.

An actor starts `baton worker` in a session of its own, so that neither the end of the actor nor that of Ray's daemons
ends a worker that serves: its link to the gateway is what it lives by. The actor reports why the worker has ended.
"""

import contextlib
import io
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError

from baton_serve.start import module_command
from cli.scaling.placement import ClusterEnded, ClusterLost, PlaceState, WorkerPlace, number_of_name

NAMESPACE = "baton"
"""The namespace of the actors in Ray."""
ANSWER_S = 5.0
"""Time for the answers of all actors."""
HEAD_LOST_S = 45.0
"""Time without the head after which the connection is given up. After 60 s Ray ends the process, without a word for
its user."""
STOP_S = 10.0
"""Time for a worker to end after SIGTERM."""
TAIL_BYTES = 4096
"""Bytes at the end of a worker's log that are reported with its end."""
MAX_MESSAGE = 1000
"""Characters of a message of Ray that are logged."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_log = structlog.get_logger("cli.scaling.ray_cluster")


class RayCluster:
    """Implements `WorkerCluster`. It must be the only connection of this process to a cluster."""

    def __init__(self, address: str, prefix: str, resources: Mapping[str, float], module: str = "cli") -> None:
        """Connect. `resources` are those of one worker, and `module` is what its process runs. Raises
        `ClusterLost`."""
        self._prefix = prefix
        self._resources = resources
        self._module = module
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._reports: dict[str, Any] = {}  # reports that were asked for and have not come
        self._seen: set[str] = set()  # names of actors that have reported
        with _as_lost(f"no Ray cluster answers at {address}"):
            _check_answers(address)
            try:
                ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError as error:
                if address != "auto":
                    raise
                raise ClusterLost(
                    "no Ray cluster runs on this machine; start one here with `ray start`, or give HOST:PORT of one"
                ) from error
        self._head = HeadWatch(address if address.startswith("ray://") else ray.get_runtime_context().gcs_address)
        self._output = contextlib.redirect_stdout(RayMessages())
        self._output.__enter__()
        self._worker = ray.remote(placed_worker_class())
        self._lease = ray.remote(lease_class())

    def hold(self) -> None:
        """See `WorkerCluster`."""
        with _as_lost("the lease cannot be taken"):
            options = {"name": f"{self._prefix}-lease", "lifetime": "detached", "num_cpus": 0, "max_restarts": -1}
            lease = self._lease.options(**options, get_if_exists=True).remote()
            ray.get(lease.take.remote(self._holder), timeout=6 * ANSWER_S)

    def holds(self) -> bool:
        """See `WorkerCluster`. A lease whose machine was lost is taken anew."""
        self._head.check(time.monotonic())
        try:
            lease = ray.get_actor(f"{self._prefix}-lease")
            holder = ray.get(lease.holder.remote(), timeout=ANSWER_S)
        except (ActorUnavailableError, GetTimeoutError):
            return True  # its machine may be lost: it comes back empty, on another one
        except (ValueError, RayActorError):
            return False  # it was given up
        if not holder:
            self.hold()
        return holder in ("", self._holder)

    def places(self) -> dict[str, WorkerPlace]:
        """See `WorkerCluster`."""
        with _as_lost("the actors cannot be listed"):
            names = {name for name in ray.util.list_named_actors() if number_of_name(self._prefix, name) is not None}
            for name in names - set(self._reports):
                with contextlib.suppress(ValueError):  # it has ended since
                    self._reports[name] = ray.get_actor(name).report.remote()
            asked = list(self._reports.values())
            ready = set(ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)[0]) if asked else set()
            found = {}
            pending = any(report not in ready and name not in self._seen for name, report in self._reports.items())
            lack = lack_of(self._resources, ray.nodes()) if pending else ""
            for name, report in list(self._reports.items()):
                if report in ready:
                    del self._reports[name]
                place = self._read(name, report if report in ready else None, lack)
                if place is not None and name in names:
                    found[name] = place
            return found

    def _read(self, name: str, report: Any, lack: str) -> WorkerPlace | None:
        """The place by its report, or without one (None) if it has not come. Returns None if the place is gone.
        `lack`: why no node could have room for one that is pending."""
        if report is None:
            if name in self._seen:
                return WorkerPlace(name, PlaceState.UNREACHABLE)
            return WorkerPlace(name, PlaceState.PENDING, why=lack)
        try:
            said = ray.get(report)
        except ActorUnavailableError:
            return WorkerPlace(name, PlaceState.UNREACHABLE)
        except RayActorError:
            self._seen.discard(name)
            return None
        self._seen.add(name)
        return WorkerPlace(name, PlaceState(said["state"]), said["machine"], said["pid"], said["why"])

    def create(self, name: str) -> None:
        """See `WorkerCluster`. Ray spreads the actors over its nodes."""
        known = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options: dict[str, Any] = {"num_cpus": 0} | {
            option: self._resources[each] for each, option in known.items() if each in self._resources
        }
        own = {each: amount for each, amount in self._resources.items() if each not in known}
        with _as_lost(f"{name} cannot be placed"), contextlib.suppress(ValueError):  # which is there already
            self._worker.options(
                name=name,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=4,
                scheduling_strategy="SPREAD",
                resources=own,
                **options,
            ).remote()

    def start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        """See `WorkerCluster`."""
        with _as_lost(f"{name} cannot be started"):
            started = ray.get_actor(name).start.remote(name, self._module, arguments, dict(environment))
            ray.get(started, timeout=ANSWER_S)

    def remove(self, name: str) -> None:
        """See `WorkerCluster`."""
        with _as_lost(f"{name} cannot be stopped"):
            try:
                actor = ray.get_actor(name)
            except ValueError:
                return
            with contextlib.suppress(RayActorError, GetTimeoutError):  # its machine is gone or unreachable
                ray.get(actor.stop.remote(STOP_S), timeout=STOP_S + ANSWER_S)
            ray.kill(actor)

    def release(self) -> None:
        """Give up the lease: nobody decides about the places any more."""
        with _as_lost("the lease cannot be given up"), contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(f"{self._prefix}-lease"))

    def close(self) -> None:
        """See `WorkerCluster`."""
        ray.shutdown()
        self._output.__exit__(None, None, None)


class HeadWatch:
    """Asks whether the head can be reached: without it, Ray's own calls do not return."""

    def __init__(self, address: str) -> None:
        """`address`: of its control service, or of its server for clients (`ray://`)."""
        self._address = address
        self._lost_at: float | None = None

    def check(self, now: float) -> None:
        """`now` is a time of a steady clock. Raises `ClusterLost` if the head cannot be reached, and `ClusterEnded` if
        that was so for `HEAD_LOST_S`."""
        try:
            with _as_lost(f"the head of the Ray cluster does not answer at {self._address}"):
                _check_answers(self._address)
        except ClusterLost as error:
            if self._lost_at is None:
                self._lost_at = now
            if now - self._lost_at >= HEAD_LOST_S:
                raise ClusterEnded(f"{error}; its workers serve on without it") from error
            raise
        self._lost_at = None


class RayMessages(io.TextIOBase):
    """Takes what Ray prints about the cluster for a log."""

    def writable(self) -> bool:
        """A stream to write to."""
        return True

    def write(self, text: str) -> int:
        """Log what is not white space, without the codes of colours."""
        if said := " ".join(_COLOURS.sub("", text).split()):
            _log.warning("ray_message", text=said[:MAX_MESSAGE])
        return len(text)


def lack_of(resources: Mapping[str, float], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return why none of these nodes, as `ray.nodes()` lists them, has the resources, even if nothing runs there; empty
    if one has them."""
    have = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(name, 0.0) >= amount for name, amount in resources.items()) for node in have):
        return ""
    most = {name: max((node.get(name, 0.0) for node in have), default=0.0) for name in resources}
    return f"no node has {_amounts(resources)}; the most on one node: {_amounts(most)}"


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:.15g}" for name, amount in resources.items())


def _check_answers(address: str) -> None:
    """Raises `ClusterLost` if nothing listens at the address, which Ray would try to reach for a minute."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterLost(f"write auto, HOST:PORT or ray://HOST:PORT, not {address!r}")
    socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()


@contextlib.contextmanager
def _as_lost(what: str) -> Iterator[None]:
    """Raise `ClusterLost` for the errors of Ray. Its connections raise those of Python and of gRPC, too."""
    try:
        yield
    except ClusterLost:
        raise
    except (RayError, OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ClusterLost(f"{what}: {' '.join(str(error).split())[:500] or type(error).__name__}") from error


def lease_class() -> type:
    """Return the class of the actor that knows which process decides. See `placed_worker_class`."""

    class Lease:
        def __init__(self) -> None:
            self._holder = ""

        def take(self, holder: str) -> None:
            self._holder = holder

        def holder(self) -> str:
            return self._holder

    return Lease


def placed_worker_class() -> type:
    """Return the class of the actor in which a worker runs. Ray sends it to the nodes by value, since it is made in a
    function: they need `baton_serve` of the same version, and none of its private modules."""

    class PlacedWorker:
        def __init__(self) -> None:
            self._process: subprocess.Popen[bytes] | None = None
            self._log = Path()

        def start(self, name: str, module: str, arguments: list[str], environment: dict[str, str]) -> None:
            """Start a worker, unless one runs. Its log is a file: a pipe would end it with this actor."""
            if self._process is not None and self._process.poll() is None:
                return
            if self._log.is_file():
                self._log.unlink()
            descriptor, path = tempfile.mkstemp(".log", f"baton-{name}-")
            self._log = Path(path)
            try:
                self._process = subprocess.Popen(
                    module_command(module, *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
            finally:
                os.close(descriptor)

        def report(self) -> dict[str, Any]:
            """The state of the worker, and why it has ended."""
            process = self._process
            status = None if process is None else process.poll()
            state = "empty" if process is None else "running" if status is None else "ended"
            return {
                "state": state,
                "machine": socket.gethostname(),
                "pid": 0 if process is None else process.pid,
                "why": "" if status is None else self._why(status),
            }

        def _why(self, status: int) -> str:
            said: list[str] = []
            if self._log.is_file():  # it is removed when the worker is stopped
                with self._log.open("rb") as log:
                    log.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
                    tail = log.read().decode("utf-8", "replace")
                said = re.findall(r'"(?:problem|reason)": ?"((?:[^"\\]|\\.)*)"', tail) or tail.splitlines()[-1:]
            ended = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            return f"{ended}: {said[-1]}" if said else ended

        def stop(self, grace_s: float) -> None:
            """Ask the worker to leave, which moves its streams; kill it if it does not within the grace."""
            process = self._process
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(grace_s)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if self._log.is_file():
                self._log.unlink()

    return PlacedWorker
