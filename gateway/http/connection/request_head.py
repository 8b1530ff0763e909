"""Checks of a request's head that h11, h2 and Hypercorn leave out. Each raises `HttpRefusal`.

A proxy in front that reads a doubtful request otherwise than this server would let a second request through unseen
(RFC 9112, 11.2).
"""

import re
from collections.abc import Iterable, Sequence

from gateway.http.connection.refusal import Headers, malformed, unsupported

_TARGET = re.compile(rb"/[\x21-\x7e]*")
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(/[\x21-\x7e]*|\?[\x21-\x7e]*|)", re.IGNORECASE)
_HOST = re.compile(rb"[\x21-\x7e]*")


def http1_request(method: bytes, target: bytes, version: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """The path of an HTTP/1.1 request, and its headers. The host of an absolute target replaces the `Host` header
    (RFC 9112, 3.2.2)."""
    if version[:2] != b"1.":
        raise unsupported(505, "this connection speaks HTTP/1.1; HTTP/2 starts with its connection preface")
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names:
        # RFC 9112, 6.1: such a request "ought to be handled as an error".
        if b"content-length" in names:
            raise malformed("Content-Length beside Transfer-Encoding")
        if version == b"1.0":
            raise malformed("Transfer-Encoding in HTTP/1.0")
    _no_tunnel(method)
    host, path = _split_target(method, target)
    if host is not None:
        headers = [(b"host", host), *(header for header in headers if header[0] != b"host")]
    _check_host(headers)
    return path, headers


def http2_request(headers: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """The method and the path of an HTTP/2 request, whose pseudo-headers h2 has checked."""
    fields = dict(headers)
    method, path = fields.get(b":method", b""), fields.get(b":path", b"")
    _no_tunnel(method)
    if not method.isascii() or not (_TARGET.fullmatch(path) or (path == b"*" and method == b"OPTIONS")):
        raise malformed("the method or the path has invalid characters")
    _check_host(header for header in headers if header[0] in (b"host", b":authority"))
    return method, path


def _no_tunnel(method: bytes) -> None:
    if method.upper() == b"CONNECT":
        raise unsupported(501, "the server is no proxy: CONNECT is not supported")


def _split_target(method: bytes, target: bytes) -> tuple[bytes | None, bytes]:
    """The host, if the target has one, and the path with the query."""
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        return None, target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise malformed("the target is neither a path nor an http URL")
    path = absolute[2]
    return absolute[1], path if path[:1] == b"/" else b"/" + path


def _check_host(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """At most one valid `Host`, and one `:authority`, which h2 has compared with it. (h11 requires a `Host`.)"""
    hosts = [value for name, value in headers if name in (b"host", b":authority")]
    if (len(hosts) > 1 and len(set(hosts)) > 1) or len(hosts) > 2:
        raise malformed("several hosts")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise malformed("the host has invalid characters")
