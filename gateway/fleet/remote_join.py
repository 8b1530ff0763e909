"""Lets remote workers join: owns the port, the keys and the allow-list, and passes requests to the fleet."""

import socket
from pathlib import Path

import anyio
import structlog

from actors.actor import Ref
from actors.join.listener import JoinLimits, JoinListener
from actors.join.request import JoinRequest
from actors.transport.allow_list import AllowList
from actors.transport.endpoint import EndpointError
from actors.transport.keys import GATEWAY_KEY, KeyFileError, read_key
from actors.transport.rejections import Rejection, Rejections
from gateway.fleet.descriptors import Descriptors
from gateway.fleet.join_address import join_address, listen_at
from gateway.http.listener import BindError
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.fleet.remote_join")

RETRY_S = 0.5
"""Between two tries to listen where a gateway that leaves still does."""


class RemoteJoin:
    """Lets remote workers ask to join. Synchronous but for `run`."""

    def __init__(
        self, settings: GatewaySettings, rejections: Rejections, descriptors: Descriptors | None = None
    ) -> None:
        """Raises `BindError` for an address, a key or a list that cannot be used."""
        try:
            self._at = join_address(settings.listen_workers, public=settings.allow_public_workers)
            folder = Path(settings.keys_dir).expanduser()
            self._keys, self._allowed = read_key(folder / GATEWAY_KEY), AllowList(folder)
            if not (listed := self._allowed.read()).names:
                why = "; ".join(listed.refused.values()) or f"{folder} has no key of one (baton worker-keys add)"
                raise BindError(f"no worker may join: {why}")
        except (EndpointError, KeyFileError) as error:
            raise BindError(str(error)) from error
        self._rejections = rejections
        self._descriptors = descriptors
        self._joins: JoinListener | None = None
        self._socket: socket.socket | None = None
        self._shut = False

    def listen(self) -> None:
        """Take the port now. Raises `BindError`."""
        try:
            self._socket = listener = listen_at(*self._at)
        except EndpointError as error:
            raise BindError(str(error)) from error
        if self._descriptors is not None:
            listener.keep_from(self._descriptors.first_kept, lambda: self._rejections.count(Rejection.FULL))
        _log.info("listening_for_workers", host=self._at[0], port=self.port)

    @property
    def port(self) -> int:
        """The one that is listened on; 0 before."""
        port: int = 0 if self._socket is None else self._socket.getsockname()[1]
        return port

    async def run(self, fleet: Ref[JoinRequest]) -> None:
        """Pass join requests on to the fleet until cancelled; then all links of remote workers are closed. Without
        `listen` it waits for the port, which a gateway that leaves may still have."""
        logged = False
        while self._socket is None and not self._shut:
            try:
                self.listen()
            except BindError as error:
                if not logged:
                    _log.info("waits_for_the_port", reason=str(error))
                logged = True
                await anyio.sleep(RETRY_S)
        if self._socket is not None:
            limits = None if self._descriptors is None else JoinLimits(connections=self._descriptors.remote_workers)
            self._joins = JoinListener(self._keys, self._allowed, fleet, self._rejections, limits)
            if self._shut:
                self._joins.shut()
            await self._joins.run(self._socket)

    def shut(self) -> None:
        """Let no worker join any more, also none that is pending; those that have joined stay."""
        self._shut = True
        if self._joins is not None:
            self._joins.shut()
