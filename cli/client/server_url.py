"""URLs of a running server, and the errors of a command that cannot use it."""

import re
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import typer

from actors.transport.endpoint import is_loopback
from cli.config.errors import CommandFailed
from cli.config.settings import Settings

UNIX = "unix:"
"""The beginning of the URL of a Unix socket: `unix:PATH`, or `unix://PATH`."""


def server_url(given: str) -> str:
    """Return the URL to which routes are appended. Adds a missing scheme, and removes the `/v1` of OpenAI's clients.

    Raises `CommandFailed` if `given` is not a server's URL.
    """
    if given.startswith(UNIX):
        if not socket_path(given):
            raise CommandFailed(f"--url: {given} has no path; it is like unix:/run/baton.sock")
        return "http://localhost"
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        host, path = parts.hostname, parts.path.rstrip("/")
        port = parts.port  # raises ValueError if it is not a number
    except ValueError as error:
        raise CommandFailed(f"--url: {given}: {error}") from error
    if parts.scheme not in ("http", "https") or not host or port == 0 or " " in given:
        raise CommandFailed(f"--url: {given} is not a URL like http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"


def socket_path(url: str) -> str:
    """Return the path of a Unix socket's URL; empty for another URL."""
    return url.removeprefix(UNIX).removeprefix("//") if url.startswith(UNIX) else ""


def shown_url(client: httpx.Client, given: str) -> str:
    """Return the URL of a server as messages have it: of the client, or as `given` for a Unix socket."""
    return given if socket_path(given) else str(client.base_url).rstrip("/")


def url_of(settings: Settings) -> str:
    """Return the URL of a server with these settings on this machine."""
    if not settings.tcp:
        return f"{UNIX}{Path(settings.unix_socket).expanduser().absolute()}"
    return base_url(settings.host, settings.port, tls=bool(settings.tls_cert))


def base_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL under which this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def server_client(given: str, key: str, timeout: httpx.Timeout | float, certificate: str = "") -> httpx.Client:
    """Return an HTTP client of the server, which sends the key, if there is one. Over TLS it trusts the authorities of
    `SSL_CERT_FILE`, or else the usual ones, and the server's own `certificate`, a file.

    For a server on this machine the proxies of the environment are ignored: a proxy would get the key, and not reach
    the server. Prints a warning if the key travels unencrypted. Raises `CommandFailed` if `given` is not a server's
    URL.
    """
    url = server_url(given)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    host = urlsplit(url).hostname or ""
    remote = not is_loopback(host)
    if key and remote and url.startswith("http://"):
        typer.echo(f"Warning: the key is sent to {host} unencrypted; use an https URL, or an SSH tunnel", err=True)
    try:
        trusted = _trusted(certificate) if url.startswith("https://") else False
        if path := socket_path(given):
            transport = httpx.HTTPTransport(uds=path)
            return httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False, transport=transport)
        return httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=remote, verify=trusted)
    except httpx.InvalidURL as error:
        raise CommandFailed(f"--url: {given}: {error}") from error


def _trusted(certificate: str) -> ssl.SSLContext:
    """Raises `CommandFailed`."""
    try:
        context = httpx.create_ssl_context()
        if certificate:
            context.load_verify_locations(Path(certificate).expanduser())
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the server's own certificate is enough
    except (OSError, ssl.SSLError) as error:
        named = f"tls_cert: {certificate}" if certificate else "SSL_CERT_FILE"
        raise CommandFailed(f"{named}: {error}") from error
    return context


def unanswered(url: str, error: Exception) -> CommandFailed:
    """Return the error of a command whose server cannot be reached."""
    reason = re.sub(r"\[Errno -?\d+\] ", "", str(error)).removesuffix(".") or type(error).__name__
    hint = "`baton serve` starts one, and --url names another one"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        hint = "SSL_CERT_FILE names a file of certificates to trust, such as the server's own"
    elif isinstance(error, httpx.RemoteProtocolError) and url.startswith("http:"):
        hint = "if it has a certificate, its URL begins with https:"
    return CommandFailed(f"no server answers at {url}: {reason}; {hint}")


def refused(status: int, message: str) -> CommandFailed:
    """Return the error of a command that the server refused."""
    hint = "; set BATON_API_KEY or BATON_ADMIN_KEY to the server's key" if status == httpx.codes.UNAUTHORIZED else ""
    return CommandFailed(f"the server refused ({status}): {message}{hint}")
