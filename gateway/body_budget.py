"""Bounds the bytes of request bodies that a gateway holds, and counts who still needs each body."""

from gateway.errors import RequestError
from protocol.errors import ErrorCode


class BodyBudget:
    """Counts the bytes of all bodies of a gateway. Synchronous, on one event loop.

    Bytes count when they have been received, so that a client that sends nothing takes no room from others, until the
    last user of the body releases it. A body over the budget is refused. It does not wait: many half-read bodies could
    otherwise wait for each other.
    """

    def __init__(self, bound: int, retry_after_s: int) -> None:
        self._bound = bound
        self._retry_after_s = retry_after_s
        self.held = 0
        """Bytes that count now; never over the bound."""

    def take(self, count: int) -> None:
        """Count so many bytes more. Raises `RequestError` (429) when the budget has no room for them."""
        if self.held + count > self._bound:
            text = f"the server holds all the request bodies that it can: max_total_body_bytes is {self._bound}"
            raise RequestError(ErrorCode.OVERLOADED, text, retry_after_s=self._retry_after_s)
        self.held += count

    def give_back(self, count: int) -> None:
        """Count so many bytes less."""
        self.held -= count


class HeldBody:
    """The counted bytes of one body. Its creator is its first user; the last user's `release` gives the bytes back."""

    __slots__ = ("_budget", "_users", "size")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._users = 1
        self.size = 0
        """Bytes that it counts for."""

    def grow(self, count: int) -> None:
        """Count so many bytes more. Raises `RequestError` (429) when the budget has no room for them."""
        self._budget.take(count)
        self.size += count

    def shrink(self) -> None:
        """Give back all its bytes, which were discarded."""
        self._budget.give_back(self.size)
        self.size = 0

    def need(self) -> "HeldBody":
        """Add a user, which will call `release`. Returns itself."""
        self._users += 1
        return self

    def release(self) -> None:
        """Remove a user."""
        self._users -= 1
        if not self._users:
            self.shrink()
