"""Gateways in front of this server whose headers are trusted, such as the Envoy of llm-d's endpoint picker."""

import re
from collections.abc import Sequence
from ipaddress import ip_address

from starlette.types import Scope

from gateway.errors import invalid
from gateway.host_names import UNIX, parse_network
from gateway.settings import GatewaySettings

FAIRNESS_HEADER = "x-llm-d-inference-fairness-id"
OLD_FAIRNESS_HEADER = "x-gateway-inference-fairness-id"
"""Its name in llm-d before 0.8. The new one takes precedence, as it does there."""
MAX_FAIRNESS_ID = 128
_FAIRNESS_ID = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_FAIRNESS_ID)


class TrustedGateways:
    """Recognizes requests of the gateways of `trusted_gateways`, by the address of their connection. No header
    decides that."""

    def __init__(self, settings: GatewaySettings) -> None:
        named = set(settings.trusted_gateways)
        self._networks = [parse_network(each) for each in named - {UNIX}]
        self._unix = UNIX in named
        self._given = bool(named)

    def sent(self, scope: Scope) -> bool:
        """True for a request that a trusted gateway has passed on."""
        if not self._given:
            return False
        client = scope.get("client")
        if client is None:
            return self._unix
        try:
            address = ip_address(client[0].partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 client of a socket for both
        return any((mapped or address) in network for network in self._networks)

    def trace_headers(self, scope: Scope) -> Sequence[tuple[bytes, bytes]]:
        """The headers that may name the parent of the trace. Every caller's may, unless gateways are set: then only
        theirs."""
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        return headers if not self._given or self.sent(scope) else ()

    def fairness_id(self, scope: Scope) -> str:
        """The fairness id that a trusted gateway gave a request; empty without one. From others the header has no
        effect. Raises `RequestError` for an invalid one."""
        if not self.sent(scope):
            return ""
        for header in (FAIRNESS_HEADER, OLD_FAIRNESS_HEADER):
            given = [value for name, value in scope["headers"] if name == header.encode()]
            if given:
                if len(given) > 1 or not _FAIRNESS_ID.fullmatch(given[0]):
                    allowed = f"one value of 1 to {MAX_FAIRNESS_ID} printable ASCII characters without spaces"
                    raise invalid(header, f"the header `{header}` must have {allowed}")
                return bytes(given[0]).decode("ascii")
        return ""
