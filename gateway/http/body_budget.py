"""The bytes of request bodies that a gateway holds: how many there may be in all, and who still needs which."""

from gateway.http.errors import from_code
from protocol.errors import ErrorCode


class BodyRoom:
    """Counts them for a whole gateway. Synchronous, on one event loop.

    Bytes count as they arrive, so that who sends nothing takes no room from others, and until nobody needs the body any
    more. What finds no room is refused: were it left to wait, many halves of bodies could wait for each other.
    """

    def __init__(self, bound: int, retry_after_s: int) -> None:
        self._bound = bound
        self._retry_after_s = retry_after_s
        self.held = 0
        """Bytes that count now; never over the bound."""

    def take(self, count: int) -> None:
        """Raises `ApiError` (429) when there is no room for so many bytes more."""
        if self.held + count > self._bound:
            text = f"the server holds all the request bodies that it can: max_total_body_bytes is {self._bound}"
            raise from_code(ErrorCode.OVERLOADED, text, retry_after_s=self._retry_after_s)
        self.held += count

    def give_back(self, count: int) -> None:
        """So many bytes count no more."""
        self.held -= count


class HeldBody:
    """The bytes of one body in the room. Whoever makes it needs it first; when nobody does any more, they are given
    back."""

    __slots__ = ("_room", "_users", "size")

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._users = 1
        self.size = 0
        """Bytes that it counts for."""

    def grow(self, count: int) -> None:
        """It has so many bytes more. Raises `ApiError` (429) when there is no room for them."""
        self._room.take(count)
        self.size += count

    def shrink(self) -> None:
        """Its bytes were thrown away."""
        self._room.give_back(self.size)
        self.size = 0

    def need(self) -> "HeldBody":
        """One more needs it, and will say when that is over. Returns itself."""
        self._users += 1
        return self

    def release(self) -> None:
        """One of those who need it does so no more."""
        self._users -= 1
        if not self._users:
            self.shrink()
