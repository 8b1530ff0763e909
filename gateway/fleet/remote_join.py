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
from actors.transport.join_tokens import JoinTokens
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
            self._keys = read_key(folder / GATEWAY_KEY)
            self._allowed, self._tokens = AllowList(folder), JoinTokens(folder)
            listed = self._allowed.read()
            if not listed.names and listed.refused:
                raise BindError(f"no worker may join: {'; '.join(listed.refused.values())}")
            if not listed.names and not self._tokens.read().names:
                _log.warning("nobody_may_join", folder=str(folder))
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
            self._joins = JoinListener(self._keys, self._allowed, fleet, self._rejections, limits, tokens=self._tokens)
            if self._shut:
                self._joins.shut()
            await self._joins.run(self._socket)

    @property
    def server_key(self) -> str:
        """The gateway's public key, as people pass it on."""
        return self._keys.public_text

    def make_token(self, name: str, valid_s: float) -> str:
        """Make a join token for a worker of this name, which takes the place of one that has it. Raises
        `KeyFileError`."""
        return self._tokens.make(name, valid_s)

    def forget(self, name: str) -> None:
        """Let a worker join no more, with its key or with a token. Logs what the system does not allow."""
        try:
            self._tokens.revoke(name)
            if name in self._allowed.read().names.values():
                self._allowed.remove(name)
        except KeyFileError as error:
            _log.error("key_not_removed", worker=name, reason=str(error))

    def shut(self) -> None:
        """Let no worker join any more, also none that is pending; those that have joined stay."""
        self._shut = True
        if self._joins is not None:
            self._joins.shut()
