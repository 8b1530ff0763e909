"""Who comes in by the door: which worker of the fleet it is, and whether what it serves fits."""

import socket
from pathlib import Path

import anyio
import structlog

from actors.join.address import door_address, listen_at
from actors.join.listener import Door, DoorLimits
from actors.join.request import Arrival
from actors.process.descriptors import Descriptors
from actors.supervision.remote_worker import RemoteWorker
from actors.transport.allow_list import AllowList
from actors.transport.endpoint import EndpointError
from actors.transport.keys import GATEWAY_KEY, KeyFileError, read_key
from actors.transport.rejections import Refusal
from gateway.fleet.fleet import Fleet
from gateway.http.server import BindError
from gateway.settings import GatewaySettings
from protocol.events import Hello

_log = structlog.get_logger("gateway.fleet.remote_join")


PREDECESSOR_S = 0.5
"""Between two tries to listen where a gateway that leaves still does."""


class Reception:
    """Introduces the workers of other machines to the fleet. Synchronous but for `run`."""

    def __init__(self, settings: GatewaySettings, fleet: Fleet, descriptors: Descriptors | None = None) -> None:
        """Raises `BindError` for an address, a key or a list that cannot be used."""
        self._fleet = fleet
        self._refusals = fleet.refusals
        try:
            self._at = door_address(settings.listen_workers, public=settings.allow_public_workers)
            folder = Path(settings.keys_dir).expanduser()
            keys, allowed = read_key(folder / GATEWAY_KEY), AllowList(folder)
            if not (listed := allowed.read()).names:
                why = "; ".join(listed.refused.values()) or f"{folder} has no key of one (baton keys add)"
                raise BindError(f"no worker may join: {why}")
        except (EndpointError, KeyFileError) as error:
            raise BindError(str(error)) from error
        self._descriptors = descriptors
        limits = DoorLimits() if descriptors is None else DoorLimits(guests=descriptors.guests)
        self._door = Door(keys, allowed, self.arrived, fleet.refusals, limits)
        self._listener: socket.socket | None = None
        self._shut = False

    def listen(self) -> None:
        """Take the port now. Raises `BindError`."""
        try:
            self._listener = listener = listen_at(*self._at)
        except EndpointError as error:
            raise BindError(str(error)) from error
        if self._descriptors is not None:
            listener.keep_from(self._descriptors.first_kept, lambda: self._refusals.count(Refusal.FULL))
        _log.info("listening_for_workers", host=self._at[0], port=self.port)

    @property
    def port(self) -> int:
        """The one that is listened on; 0 before."""
        port: int = 0 if self._listener is None else self._listener.getsockname()[1]
        return port

    async def run(self) -> None:
        """Let workers in until cancelled; then all of them are let go. Without `listen` it waits for the port, which a
        gateway that leaves may still have."""
        told = False
        while self._listener is None and not self._shut:
            try:
                self.listen()
            except BindError as error:
                if not told:
                    _log.info("waits_for_the_port", reason=str(error))
                told = True
                await anyio.sleep(PREDECESSOR_S)
        if self._listener is not None:
            await self._door.run(self._listener)

    def shut(self) -> None:
        """Let nobody in any more, also not who stands at the door; those who are in stay."""
        self._shut = True
        self._door.shut()

    def arrived(self, arrival: Arrival) -> None:
        """Let it join as the worker that its key names, or decline in words and count it."""
        kind, why = Refusal.MODEL, self._objection(arrival.name, arrival.hello)
        if self._shut:
            kind, why = Refusal.TAKEN, "the gateway is shutting down"
        if why is not None:
            _log.warning("worker_declined", worker=arrival.name, address=arrival.address, reason=why)
            self._refusals.count(kind)
            arrival.decline(why)
            return
        worker = self._fleet.remote(arrival.name, arrival.hello.model)
        self._note_kind(arrival)
        worker.arrive(arrival)

    def _objection(self, name: str, hello: Hello) -> str | None:
        """Why it must not serve under that name, or that model's."""
        known = self._fleet.find(name)
        if known is not None and not isinstance(known.process, RemoteWorker):
            return f"{name} is a worker of the gateway's own machine: give the key another name"
        if known is not None and known.model != hello.model:
            return (
                f"{name} served {known.model!r} before, not {hello.model!r}: give each model's worker a key of its own"
            )
        others = {
            other.model_digest
            for member in self._fleet
            if member.name != name
            and member.model == hello.model
            and (other := member.process.status.hello) is not None
        }
        if others and hello.model_digest not in others:
            return (
                f"its checkpoint of {hello.model!r} (digest {hello.model_digest or 'none'}) is not the one that is "
                f"served here (digest {', '.join(sorted(others)) or 'none'})"
            )
        return None

    def _note_kind(self, arrival: Arrival) -> None:
        """Another backend, device, number type, kind of CPU or version is welcome, and told of: its tokens may differ
        from the others'."""
        hello = arrival.hello
        for member in self._fleet:
            other = member.process.status.hello
            if other is not None and member.name != arrival.name and member.model == hello.model:
                if (other.backend, other.config_digest) != (hello.backend, hello.config_digest):
                    _log.warning("worker_unlike", worker=arrival.name, other=member.name, model=hello.model)
                return
