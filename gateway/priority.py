"""Priority classes of requests."""

from enum import StrEnum

from protocol.scheduling import PriorityClass


class Priority(StrEnum):
    """The priority class of a request, which is that of its API key."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


WEIGHTS = {Priority.HIGH: 4.0, Priority.NORMAL: 1.0, Priority.LOW: 0.25}
"""The weight of a key of each class, in the shares of an overloaded server."""
CLASSES: dict[Priority, PriorityClass] = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}
