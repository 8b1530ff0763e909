"""The address of a running server, as people give it, and what the server's refusals mean on a command line."""

from urllib.parse import urlsplit

import httpx

from actors.transport.endpoint import is_loopback
from cli.config.errors import CommandFailed


def server_url(given: str) -> str:
    """The URL to which routes are appended. `127.0.0.1:8000` is one, and so is the `/v1` that OpenAI's clients take.

    Raises `CommandFailed` for what is no address of a server.
    """
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        host, path = parts.hostname, parts.path.rstrip("/")
        port = parts.port  # raises for one that is no number
    except ValueError as error:
        raise CommandFailed(f"--url: {given}: {error}") from error
    if parts.scheme not in ("http", "https") or not host or port == 0 or " " in given:
        raise CommandFailed(f"--url: {given} is not http://HOST:PORT")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"


def base_url(host: str, port: int) -> str:
    """Where a person on this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def server_client(given: str, key: str, timeout: httpx.Timeout | float) -> httpx.Client:
    """A client of the server there, which shows it the key, if there is one. What is on this machine is asked without
    the proxy that the environment may name for the rest of the world: it would get the key, and find nobody.

    Raises `CommandFailed` for what is no address of a server.
    """
    url = server_url(given)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    elsewhere = not is_loopback(urlsplit(url).hostname or "")
    try:
        return httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=elsewhere)
    except httpx.InvalidURL as error:
        raise CommandFailed(f"--url: {given}: {error}") from error


def unanswered(url: str, error: Exception) -> CommandFailed:
    """The failure of a command whose server cannot be reached."""
    return CommandFailed(f"no server answers at {url}: {error}; `baton serve` starts one, --url says where another is")


def refused(status: int, message: str) -> CommandFailed:
    """The failure of a command that the server refused."""
    hint = "; set BATON_API_KEY or BATON_ADMIN_KEY to the server's" if status == httpx.codes.UNAUTHORIZED else ""
    return CommandFailed(f"the server refused ({status}): {message}{hint}")
