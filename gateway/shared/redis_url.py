"""URLs of Redis: what its clients would read differently from what was meant is refused."""

from urllib.parse import urlsplit


def check_redis_url(url: str) -> None:
    """Raises `ValueError`, whose text has nothing of the password, unless it is `redis://HOST`, `rediss://HOST` or
    `unix:///PATH`. The client itself takes a port 0 for the default one, and ignores an invalid database number."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        text = "invalid host or port; characters such as / # @ in a password must be percent-encoded"
        raise ValueError(text) from None
    if parts.scheme == "unix":
        if host or not parts.path.strip("/"):
            raise ValueError("write unix:///PATH, with three slashes")
        return
    if not host or any(each.isspace() for each in host):
        raise ValueError("the host is missing; write redis://HOST:PORT")
    if port == 0:
        raise ValueError("the port must be 1 to 65535")
    database = parts.path.strip("/")
    if database and not (database.isascii() and database.isdecimal()):
        raise ValueError("after the host and a slash is the number of a database")
