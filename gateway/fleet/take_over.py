"""To take another gateway's place: its socket comes only when the workers of this one can serve."""

import os
from collections.abc import Sequence
from typing import Protocol

import anyio

from actors.supervision.worker import WorkerState
from gateway.fleet.fleet import Fleet, Member
from gateway.http.listener import Listener
from gateway.http.server import BindError, adopt, listen
from gateway.settings import GatewaySettings
from gateway.streaming.peer import PeerGateway

SETTLED = frozenset({WorkerState.READY, WorkerState.GIVEN_UP, WorkerState.STOPPED})


class Predecessor(PeerGateway, Protocol):
    """The gateway whose port is taken over."""

    async def meet(self) -> int | None:
        """Get its listening socket: a descriptor, which is the caller's. None when nobody has the port. Raises
        `TakeOverFailed`."""

    async def relieve(self) -> None:
        """Tell it that somebody else accepts from that socket. Logs what goes wrong, and does not raise."""

    async def gone(self) -> None:
        """Wait until it has ended; at once when nobody had the port."""


class TakeOverFailed(Exception):
    """Raised when another gateway's place cannot be taken: it stays. The message says why."""


async def take_over(
    predecessor: Predecessor, settings: GatewaySettings, fleet: Fleet, leave: anyio.Event
) -> Listener | None:
    """Get its socket, once the workers can serve; None when `leave` was set meanwhile. Raises `TakeOverFailed`."""
    await fleet.until(lambda: all(_has_settled(each) for each in _own(fleet)))
    if not _serves_all(fleet):
        raise TakeOverFailed("; ".join(fleet.reasons()) or "the workers were stopped")
    descriptor = await predecessor.meet()
    if leave.is_set():  # told to end meanwhile: whom it was to succeed stays
        if descriptor is not None:
            os.close(descriptor)
        return None
    try:
        return listen(settings) if descriptor is None else adopt(descriptor, settings)
    except BindError as error:
        raise TakeOverFailed(str(error)) from error


def _own(fleet: Fleet) -> Sequence[Member]:
    """The workers that this gateway starts: those of other machines come and go."""
    return [each for each in fleet if not each.remote]


def _has_settled(member: Member) -> bool:
    """It was started, and is as ready as it will be."""
    return bool(member.process.status.incarnation) and member.state in SETTLED


def _serves_all(fleet: Fleet) -> bool:
    models = {each.model for each in _own(fleet)}
    return models == {each.model for each in _own(fleet) if each.state is WorkerState.READY}
