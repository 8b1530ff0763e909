"""The end of a connection whose client may still be sending."""

from hypercorn.events import Closed


class Lingering(Closed):  # type: ignore[misc]  # Hypercorn has no types
    """Ends a connection after its client has had time to read the response (RFC 9112, 9.6): a server that closes with
    unread bytes resets the connection, which discards what the client has not read."""
