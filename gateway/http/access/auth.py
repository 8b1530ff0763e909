"""Authentication, allowed hosts and origins, header bounds and request ids, for every request. An ASGI middleware
without buffering."""

import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.transport.endpoint import is_loopback
from gateway.errors import RefusalCode, RequestError
from gateway.http.access.credentials import presented_key
from gateway.http.access.gateways import TrustedGateways
from gateway.http.access.hosts import AllowedHosts
from gateway.http.access.origins import CrossOrigin
from gateway.http.conventions import ConventionsByPath
from gateway.http.exchange import HttpExchange
from gateway.http.request_record import RequestRecord, RequestRecords
from gateway.key_weights import Priority
from gateway.keys.api_keys import ApiKey, ApiKeys
from gateway.keys.record import DEFAULT_NAME
from gateway.settings import GatewaySettings

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/v1/health"})
"""The only paths that need no API key and are answered under any host name: they reveal whether models can be used, and
`/health/ready` also the names of the models and of workers that were given up."""
PAGE, PAGE_FILES = "/", "/page/"
"""The page and its files. They are the same on every server, and ask for the key that the requests of the page need."""
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
"""The routes that change the adapters. They need what a change under `/admin` needs."""
KEYS_PATH = "/admin/keys"
"""The route with the use of all keys, which needs what a change needs."""
FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"})
"""Headers that proxies add: the client is then on another machine."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class AuthMiddleware:
    """Refuses requests with too large headers, for foreign hosts, of foreign pages or without a valid key, and gives
    every request an id, which its response carries. `scope["baton.key"]` is the `ApiKey` of the request, or None, and
    `scope["baton.key_name"]` its name, or empty; `scope["baton.priority"]` is the priority class of that key, and
    `scope["baton.fairness_id"]` the fairness id of a trusted gateway, or empty.

    A request for which `direct(method, path)` returns an app goes straight to it, and that app puts the id into its
    response: no wrapper is called for each token. Every other request goes to `app`.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct: Callable[[str, str], ASGIApp | None],
        settings: GatewaySettings,
        conventions: ConventionsByPath,
        keys: ApiKeys,
        records: RequestRecords,
        gateways: TrustedGateways,
    ) -> None:
        self._app = app
        self.conventions = conventions
        self.records = records
        self._direct = direct
        self._settings = settings
        self._keys = keys
        # Without a key, only clients on this machine may change something. A page that a browser loaded under another
        # name of this machine may not.
        self._local = is_loopback(settings.host)
        self._hosts = AllowedHosts(settings, keyed=bool(keys))
        self._pages = CrossOrigin(settings)
        self._gateways = gateways

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name_request(scope)
        scope["baton.key"], scope["baton.key_name"], scope["baton.priority"] = None, "", Priority.NORMAL
        scope["baton.fairness_id"] = ""
        record = self.records.begin(scope)
        conventions = self.conventions.of(scope["path"])
        error = self._check(scope, conventions.key_headers)
        record.key_name = scope["baton.key_name"]
        direct = self._direct(scope["method"], scope["path"])
        headers = self._pages.response_headers(scope)
        if error is not None or self._pages.is_preflight(scope):
            exchange = HttpExchange(scope, receive, _recorded(send, record, headers), self._settings, conventions)
            await (exchange.respond_empty() if error is None else exchange.refuse(error))
        elif direct is not None:
            # Few clients are pages of another origin: those of all others get `send` as it is.
            of_page = any(name == b"access-control-allow-origin" for name, _ in headers)
            await direct(scope, receive, _recorded(send, record, headers) if of_page else send)
        else:
            named = conventions.named(record.request_id)
            await self._app(scope, receive, _recorded(send, record, [*named, *headers]))

    def _check(self, scope: Scope, key_headers: Collection[bytes]) -> RequestError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("query_string", b""))
        bound = self._settings.max_header_bytes
        if size > bound:
            return RequestError(RefusalCode.HEADERS_TOO_LARGE, f"the headers are over the bound of {bound} bytes")
        try:
            scope["baton.fairness_id"] = self._gateways.fairness_id(scope)
        except RequestError as invalid:
            return invalid
        if scope["path"] not in OPEN_PATHS and (refusal := self._hosts.check(scope)) is not None:
            return refusal
        if (refusal := self._pages.check(scope, key_headers)) is not None or self._pages.is_preflight(scope):
            return refusal
        # This is the path as the server parsed it, never one rebuilt from the Host header.
        if scope["path"].startswith("/admin/") or scope["path"] in (LOAD_ADAPTER, UNLOAD_ADAPTER):
            return self._check_admin(scope)
        if not self._keys or scope["path"] == PAGE or scope["path"].startswith(PAGE_FILES):
            return None
        found = self._note(scope, self._find(scope, key_headers))
        return None if found is not None or scope["path"] in OPEN_PATHS else self._no_key(scope, key_headers)

    def _check_admin(self, scope: Scope) -> RequestError | None:
        """Reading takes an API key or a key for the administration; a change takes the latter, or if there is none
        `api_key`. Clients with a named key change nothing. The use of all keys is read as if it were changed."""
        reads = scope["method"] in ("GET", "HEAD") and scope["path"] != KEYS_PATH
        admin = self._note(scope, self._find_admin(scope))
        if admin is not None or (self._keys.administers and reads and not self._keys):
            return None
        client = self._note(scope, self._find(scope))
        if self._keys.administers and not (reads and client is not None):
            return self._no_key(scope, kind="admin")
        if self._keys:
            if client is None:
                return self._no_key(scope)
            if reads or client.name == DEFAULT_NAME:
                return None
            sentence = "the keys of `api_keys_file` change nothing here; to do this, set an admin key"
            return RequestError(RefusalCode.ADMIN_KEY_NEEDED, sentence)
        if reads or (self._local and _is_local(scope)):
            return None
        sentence = "to do this from another machine, set an admin key or an API key"
        return RequestError(RefusalCode.ADMIN_KEY_NEEDED, sentence)

    def _find(self, scope: Scope, key_headers: Collection[bytes] = ()) -> ApiKey | None:
        """The accepted key of a client, which may have expired."""
        given = presented_key(scope, key_headers)
        return None if given is None else self._keys.find(given)

    def _find_admin(self, scope: Scope) -> ApiKey | None:
        given = presented_key(scope)
        return None if given is None else self._keys.find_admin(given)

    def _note(self, scope: Scope, key: ApiKey | None) -> ApiKey | None:
        """Note a valid key in the scope. None for one that is not."""
        if key is None or key.expired:
            return None
        scope["baton.key"], scope["baton.key_name"], scope["baton.priority"] = key, key.name, key.limits.priority
        return key

    def _no_key(self, scope: Scope, key_headers: Collection[bytes] = (), kind: str = "API") -> RequestError:
        found = self._find_admin(scope) if kind == "admin" else self._find(scope, key_headers)
        text = f"a valid {kind} key is needed"
        if found is not None and found.expired:
            text += f"; this one, {found.name!r}, has expired"
        headers = [(b"www-authenticate", b'Basic realm="baton", charset="UTF-8"')]
        return RequestError(RefusalCode.INVALID_API_KEY, text, headers=headers)


def name_request(scope: Scope) -> bytes:
    """Set the request's id, the client's own or a new one, in the scope, where `HttpExchange` reads it. Returns it."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    request_id: bytes = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12).encode()
    scope["baton.request_id"] = request_id.decode("ascii")
    return request_id


def _is_local(scope: Scope) -> bool:
    if any(name in FORWARDED for name, _ in scope["headers"]):
        return False  # a proxy is between
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    try:
        return is_loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:  # no valid host
        return False


def _recorded(send: Send, record: RequestRecord, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    """Note the status of the response in the record, and add headers to it."""

    def send_recorded(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            record.started(message["status"])
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        return send(message)  # no coroutine of its own, as streams send each token

    return send_recorded
