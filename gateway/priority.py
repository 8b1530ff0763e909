"""Priority classes of requests."""

from enum import StrEnum


class Priority(StrEnum):
    """The priority class of a request, which is that of its API key."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
