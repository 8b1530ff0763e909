"""`POST /admin/workers/{name}/token`: one-time tokens with which workers of other machines join."""

import functools
from typing import Annotated

import anyio.to_thread
import msgspec
import structlog
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actors.transport.join_tokens import MAX_VALID_S, VALID_S
from actors.transport.keys import KeyFileError
from gateway.errors import RefusalCode, RequestError, invalid
from gateway.fleet.remote_join import RemoteJoin
from gateway.http.small_body import small_body
from gateway.keys.api_keys import ApiKeys
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.admin.joining")


class TokenTerms(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request for a join token."""

    valid_s: Annotated[float, Meta(ge=1.0, le=MAX_VALID_S)] = VALID_S
    """Time in which the token can be used."""


class TokenAdmin:
    """Makes join tokens. Only on a server with an admin key, and with that key: who has a token becomes a worker, which
    sees the prompts of its requests."""

    def __init__(self, joins: RemoteJoin | None, keys: ApiKeys, settings: GatewaySettings) -> None:
        """`joins` is None on a server that workers cannot join."""
        self._joins = joins
        self._keys = keys
        self._body_s = settings.body_timeout_s

    def routes(self) -> list[Route]:
        """The route under `/admin`."""
        return [Route("/admin/workers/{name}/token", self.make, methods=["POST"])]

    async def make(self, request: Request) -> Response:
        """A token for a worker of this name, and the public key of the gateway. The worker that uses it takes the place
        of one that has the name."""
        terms = await small_body(request, TokenTerms, self._body_s)
        if not self._keys.administers:
            text = "to make a join token, start the server with an admin key (`admin_key`)"
            raise RequestError(RefusalCode.ADMIN_KEY_NEEDED, text)
        if self._joins is None:
            text = "no worker can join this server: start it with `listen_workers`"
            raise RequestError(RefusalCode.NO_REMOTE_WORKERS, text)
        name = request.path_params["name"]
        try:
            token = await anyio.to_thread.run_sync(functools.partial(self._joins.make_token, name, terms.valid_s))
        except KeyFileError as error:
            raise invalid("worker", str(error)) from error
        _log.info("token_made", worker=name, valid_s=terms.valid_s, key=request.scope["baton.key_name"])
        value = {"worker": name, "token": token, "valid_s": terms.valid_s, "server_key": self._joins.server_key}
        return Response(msgspec.json.encode(value), media_type="application/json")
