"""Takes another gateway's place: its socket is taken over only when the workers of this one can serve."""

import os
from typing import Protocol

import anyio

from actors.actor import AskTimeout, Ref
from gateway.fleet.messages import AwaitSettled
from gateway.http.listener import Listener
from gateway.http.server import BindError, adopt, listen
from gateway.http.tls import Tls
from gateway.settings import GatewaySettings
from gateway.streaming.peer import PeerGateway

SETTLE_S = 86400.0
"""Deadline of the workers, to be ready or given up: longer than any checkpoint takes to load."""


class Predecessor(PeerGateway, Protocol):
    """The gateway whose port is taken over."""

    async def meet(self) -> int | None:
        """Get its listening socket: a descriptor, which is the caller's. None when the port is free. Raises
        `TakeOverFailed`."""

    async def relieve(self) -> None:
        """Tell it that this gateway accepts from that socket. Logs what goes wrong, and does not raise."""

    async def gone(self) -> None:
        """Wait until it has ended; at once when the port was free."""


class TakeOverFailed(Exception):
    """Raised when another gateway's place cannot be taken: it stays. The message says why."""


async def take_over(
    predecessor: Predecessor,
    settings: GatewaySettings,
    tls: Tls | None,
    fleet: Ref[AwaitSettled],
    leave: anyio.Event,
) -> Listener | None:
    """Get its socket, once the workers can serve; None when `leave` was set meanwhile. Raises `TakeOverFailed`."""
    try:
        unserved = await fleet.ask(AwaitSettled, timeout=SETTLE_S)
    except AskTimeout:
        unserved = f"the workers were neither ready nor given up within {SETTLE_S:g} s"
    if unserved:
        raise TakeOverFailed(unserved)
    descriptor = await predecessor.meet()
    if leave.is_set():  # it is to end itself: the predecessor stays
        if descriptor is not None:
            os.close(descriptor)
        return None
    try:
        return listen(settings, tls) if descriptor is None else adopt(descriptor, settings, tls)
    except BindError as error:
        raise TakeOverFailed(str(error)) from error
