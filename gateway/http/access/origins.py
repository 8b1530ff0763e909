"""Pages of other origins: which may send requests that change something, and which may read responses (CORS)."""

import re
from collections.abc import Collection

from starlette.types import Scope

from gateway.errors import RefusalCode, RequestError
from gateway.host_names import ANY, is_same_origin, parse_origin
from gateway.settings import GatewaySettings

METHODS = b"GET, POST, DELETE"
EXPOSED = b"x-request-id, x-stream-id, x-stream-gateways, retry-after"
PREFLIGHT_S = b"600"
"""Time for which a browser may keep the response to a preflight request."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]*")

Headers = list[tuple[bytes, bytes]]


class CrossOrigin:
    """The policy for requests of pages. By default no page of another origin may read a response, or change something.

    Pages of `cors_origins` may, except under `/admin`. Credentials of the browser (cookies, passwords that it keeps)
    are never allowed: a page sends its API key itself.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._origins = frozenset(map(parse_origin, settings.cors_origins))

    def response_headers(self, scope: Scope) -> Headers:
        """The headers that let a page read the response to this request."""
        if not self._origins or _is_admin(scope):
            return []
        vary = [] if ANY in self._origins else [(b"vary", b"Origin")]
        origin = _value(scope, b"origin")
        if not self._allows(origin):
            return vary
        if self.is_preflight(scope):
            return [*self._preflight_headers(scope, origin), *vary]
        return [self._allow(origin), (b"access-control-expose-headers", EXPOSED), *vary]

    def is_preflight(self, scope: Scope) -> bool:
        """True for the question of a browser whether a page may send a request. It has no key."""
        return (
            bool(self._origins)
            and scope["method"] == "OPTIONS"
            and _value(scope, b"origin") != b""
            and _value(scope, b"access-control-request-method") != b""
        )

    def check(self, scope: Scope, key_headers: Collection[bytes]) -> RequestError | None:
        """Return the refusal of a preflight request, or of a request that changes something and that a page of another
        origin sends without a key of its own; or None."""
        if self.is_preflight(scope):
            return None if not _is_admin(scope) and self._allows(_value(scope, b"origin")) else _refusal(scope)
        if scope["method"] in _READS or _sends_key(scope, key_headers) or not is_from_elsewhere(scope):
            return None
        if not _is_admin(scope) and self._allows(_value(scope, b"origin")):
            return None
        return _refusal(scope)

    def _preflight_headers(self, scope: Scope, origin: bytes) -> Headers:
        headers = [self._allow(origin), (b"access-control-allow-methods", METHODS)]
        wanted = _value(scope, b"access-control-request-headers")
        if wanted and _HEADER_NAMES.fullmatch(wanted):
            headers.append((b"access-control-allow-headers", wanted))
        headers.append((b"access-control-max-age", PREFLIGHT_S))
        # Any page of the internet may not reach into a private network because of `*`.
        listed = origin.decode("latin-1") in self._origins
        if listed and _value(scope, b"access-control-request-private-network") == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
        return headers

    def _allow(self, origin: bytes) -> tuple[bytes, bytes]:
        return b"access-control-allow-origin", ANY.encode() if ANY in self._origins else origin

    def _allows(self, origin: bytes) -> bool:
        return origin != b"" and (ANY in self._origins or origin.decode("latin-1") in self._origins)


def _is_admin(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith("/admin/")


def is_from_elsewhere(scope: Scope) -> bool:
    """The request is of a page of another origin. Browsers send `Sec-Fetch-Site` to loopback and over TLS, and `Origin`
    always when something may change."""
    site = _value(scope, b"sec-fetch-site")
    if site:
        return site not in (b"same-origin", b"none")
    origin = _value(scope, b"origin").decode("latin-1")
    return origin != "" and not is_same_origin(origin, _value(scope, b"host").decode("latin-1"))


def _sends_key(scope: Scope, key_headers: Collection[bytes]) -> bool:
    """The page or program has put a key into the request. A password of basic authentication is sent by the browser."""
    given = _value(scope, b"authorization")
    if given:
        return given[:6].lower() != b"basic "
    return any(_value(scope, header) for header in key_headers)


def _refusal(scope: Scope) -> RequestError:
    origin = ascii(_value(scope, b"origin")[:100].decode("latin-1"))
    text = f"pages of the origin {origin} may not do this; allow them with --cors-origin (`cors_origins`)"
    if _is_admin(scope):
        text = f"pages of the origin {origin} may not do this; use `baton admin`"
    return RequestError(RefusalCode.ORIGIN_NOT_ALLOWED, text)


def _value(scope: Scope, header: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == header), b"")
