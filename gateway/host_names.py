"""Host names as settings and requests have them: of the `Host` header, in patterns of allowed hosts, and in origins.
And the networks of gateways in front."""

import ipaddress
import re

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"(?!-)[a-z0-9._-]{1,253}")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@\s]+)")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
ANY = "*"
UNIX = "unix"
"""Stands for the Unix socket among the networks of gateways."""


def parse_host(text: str) -> tuple[str, str] | None:
    """The name (in lower case, without a trailing dot) or the address, and the port (or an empty string), of a `Host`
    header; None for anything else."""
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    return match[1].lower().removesuffix("."), match[2] or ""


def is_address(host: str) -> bool:
    """True for an IP address as URLs have it: IPv6 in brackets, IPv4 in four decimal parts."""
    try:
        ipaddress.ip_address(host[1:-1] if host.startswith("[") else host)
    except ValueError:
        return False
    return True


def parse_pattern(text: str) -> str:
    """The normal form of a pattern of hosts: `NAME`, `*.NAME` or `*`. Raises `ValueError`."""
    if text == ANY:
        return text
    star, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
    name = _to_ascii(name).removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a host name without a port, *.NAME or *")
    return star + name


def matches(host: str, pattern: str) -> bool:
    """True for a name that the pattern allows. `*.example.org` allows all names below `example.org`, and not itself."""
    return pattern in (ANY, host) or (pattern.startswith("*.") and host.endswith(pattern[1:]) and host != pattern[1:])


def parse_origin(text: str) -> str:
    """The origin as browsers send it, `SCHEME://HOST` and a port that is not the scheme's default one; or `*`. Raises
    `ValueError`."""
    if text == ANY:
        return text
    match = _ORIGIN.fullmatch(text.strip().lower().removesuffix("/"))
    if match is None:  # `null` too: a page of any site can have that origin, in a sandboxed frame
        raise ValueError(f"{text!r} is not an origin like https://app.example.org, or *")
    scheme, place = match.groups()
    host, _, port = place.partition(":") if not place.startswith("[") else (place, "", "")
    if port and port == _DEFAULT_PORTS.get(scheme):
        place = host
    return f"{scheme}://{_to_ascii(place)}"


def is_same_origin(origin: str, host: str) -> bool:
    """True if a page of this origin was loaded from a server of this `Host`, which may lack the port behind a proxy."""
    scheme, _, place = origin.lower().partition("://")
    page, server = parse_host(place), parse_host(host)
    if page is None or server is None:
        return False
    page_port = page[1] or _DEFAULT_PORTS.get(scheme, "")
    return page[0] == server[0] and server[1] in ("", page_port)


def parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The network of an address or in CIDR notation. Raises `ValueError`, also for bits set behind the prefix."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an address, or a network such as 10.0.0.0/8 ({error})") from error


def check_gateway(text: str) -> None:
    """Raise `ValueError` for what is neither a network nor `unix`."""
    if text != UNIX:
        parse_network(text)


def _to_ascii(name: str) -> str:
    """Encode an internationalized name as browsers do. Raises `ValueError`."""
    return name.lower() if name.isascii() else name.encode("idna").decode("ascii")
