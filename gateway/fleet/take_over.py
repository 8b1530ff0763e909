"""Takes another gateway's place: its socket is taken over only when the workers of this one can serve."""

import os
from typing import Protocol

import anyio

from actors.actor import AskTimeout, Ref
from gateway.fleet.messages import AwaitSettled
from gateway.http.listener import BindError, Listener
from gateway.http.listeners import Listeners, listen_on_all
from gateway.http.server import adopt
from gateway.http.tls import Tls
from gateway.http.unix_socket import adopt_unix, listen_unix
from gateway.settings import GatewaySettings
from gateway.streaming.peer import PeerGateway

SETTLE_S = 86400.0
"""Deadline of the workers, to be ready or given up: longer than any checkpoint takes to load."""


class Predecessor(PeerGateway, Protocol):
    """The gateway whose sockets are taken over."""

    async def meet(self) -> int | None:
        """Get its listening socket: a descriptor, which is the caller's. None when the address is free. Raises
        `TakeOverFailed`."""

    async def meet_unix(self) -> int | None:
        """Get the Unix socket that it serves beside its port, likewise, after `meet`. None if it does not have the one
        of these settings. Raises `TakeOverFailed`."""

    async def relieve(self) -> bool:
        """Tell it that this gateway accepts from that socket. True if it leaves. Logs what goes wrong, and does not
        raise."""

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
) -> Listeners | None:
    """Get its sockets, once the workers can serve; None when `leave` was set meanwhile. Raises `TakeOverFailed`."""
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
        if descriptor is None:
            return listen_on_all(settings, tls)
        if not settings.tcp:
            return Listeners(adopt_unix(descriptor, settings))
        first = adopt(descriptor, settings, tls)
        try:
            return Listeners(first, await _unix(predecessor, settings) if settings.unix_socket else None)
        except (BindError, TakeOverFailed):
            first.close()
            raise
    except BindError as error:
        raise TakeOverFailed(str(error)) from error


async def _unix(predecessor: Predecessor, settings: GatewaySettings) -> Listener:
    """Its Unix socket, or a new one. Raises `BindError` and `TakeOverFailed`."""
    descriptor = await predecessor.meet_unix()
    return listen_unix(settings) if descriptor is None else adopt_unix(descriptor, settings)
