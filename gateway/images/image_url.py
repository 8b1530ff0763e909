"""URLs of images that clients send. Each is parsed once; what was checked is what is connected to."""

import re
from dataclasses import dataclass

import httpx

from gateway.errors import RequestError, invalid
from gateway.host_names import matches, parse_pattern
from gateway.images.sources import MAX_URL
from protocol.errors import ErrorCode

_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")
"""A host whose last label is a number: an address, in whichever of the forms that resolvers take."""
_DOTTED = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ImageUrl:
    """A URL whose host the server allows."""

    url: httpx.URL
    host: str
    """In lower case, without brackets and without a trailing dot."""
    port: int


def parse_image_url(text: str, field: str, allowed: tuple[str, ...]) -> ImageUrl:
    """Parse a URL, whose host must match one of the patterns `allowed`. Raises `RequestError`."""
    try:
        if len(text) > MAX_URL or "\\" in text or re.search(r"[\x00-\x20\x7f]", text):
            raise ValueError
        url = httpx.URL(text)
        host = url.raw_host.decode("ascii").lower().removesuffix(".")
        if not 0 < (url.port or 80) < 1 << 16:
            raise ValueError
    except (httpx.InvalidURL, ValueError) as error:
        raise invalid(field, f"`{field}` is not a valid URL") from error
    if url.scheme not in _PORTS or not host:
        raise invalid(field, f"`{field}` is not a URL of http or https")
    if url.userinfo:
        raise invalid(field, f"`{field}`: a URL with a user or a password is not fetched")
    if ":" not in host and _NUMERIC.fullmatch(host) and not _DOTTED.fullmatch(host):
        raise invalid(field, f"`{field}`: an address is written in four decimal parts")
    if not any(matches(host, parse_pattern(pattern)) for pattern in allowed):
        text = (
            f"`{field}`: images of {host[:100]!r} are not fetched; --allow-image-url (`allow_image_urls`) allows hosts"
        )
        raise RequestError(ErrorCode.UNSUPPORTED, text, field=field)
    return ImageUrl(url, host, url.port or _PORTS[url.scheme])
