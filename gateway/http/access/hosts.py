"""Hosts under whose names the gateway answers: the defence against DNS rebinding."""

import socket

from starlette.types import Scope

from actors.transport.endpoint import is_loopback
from gateway.errors import RefusalCode, RequestError
from gateway.host_names import is_address, matches, parse_host, parse_pattern
from gateway.settings import GatewaySettings

LOOPBACK_NAMES = ("localhost", "*.localhost")


class AllowedHosts:
    """Refuses requests whose `Host` is not a name of this server.

    With DNS rebinding, a page of any site lets its own name point to this server, so that the browser takes both for
    one origin. The `Host` header then has the name of that site. An IP address in it cannot be rebound, and clients
    that send none are not browsers: both are allowed.

    With API keys, which such a page does not have, names are checked only if `allowed_hosts` is set.
    """

    def __init__(self, settings: GatewaySettings, *, keyed: bool) -> None:
        self._checks = bool(settings.allowed_hosts) or not keyed
        own = {*LOOPBACK_NAMES, *map(parse_pattern, settings.allowed_hosts)}
        if (bound := parse_host(settings.host)) is not None:
            own.add(bound[0])
        if not is_loopback(settings.host):  # another machine uses this one's name
            name = socket.gethostname().lower()
            own |= {name, name.partition(".")[0]}
        self._patterns = own

    def check(self, scope: Scope) -> RequestError | None:
        """Return the refusal of a request, or None."""
        if not self._checks:
            return None
        for name, value in scope["headers"]:
            if name == b"host" and value and not self._allows(value.decode("latin-1")):
                shown = ascii(value[:100].decode("latin-1"))
                text = f"{shown} is not a name of this server; allow it with --allowed-host (`allowed_hosts`)"
                return RequestError(RefusalCode.HOST_NOT_ALLOWED, text)
        return None

    def _allows(self, value: str) -> bool:
        parsed = parse_host(value)
        if parsed is None:
            return False
        return any(matches(parsed[0], pattern) for pattern in self._patterns) or is_address(parsed[0])
