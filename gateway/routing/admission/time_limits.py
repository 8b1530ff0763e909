"""Time limits that a request sets for itself, in headers, which every dialect has."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import invalid
from gateway.settings import GatewaySettings

QUEUE_HEADER = "x-max-queue-s"
TIMEOUT_HEADER = "x-request-timeout-s"
LEAST_S = 0.001


@dataclass(frozen=True, slots=True)
class RequestTimeLimits:
    """The time limits of a request, in seconds."""

    total_s: float
    """Time to its end, its wait included."""
    queue_s: float
    """Time for which it may wait for its first turn; 0 is as long as it may take in all."""

    @classmethod
    def of(cls, header: Callable[[bytes], str], settings: GatewaySettings) -> "RequestTimeLimits":
        """Return those of the settings, or shorter ones that headers give. Raises `RequestError`."""
        total_s = _given(TIMEOUT_HEADER, header, settings.request_timeout_s)
        queue_s = _given(QUEUE_HEADER, header, settings.max_queue_s or total_s)
        return cls(total_s, 0.0 if queue_s >= total_s else queue_s)


def _given(name: str, header: Callable[[bytes], str], most: float) -> float:
    text = header(name.encode())
    if not text:
        return most
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds >= LEAST_S:
        raise invalid(name, f"the header `{name}` must be a number of seconds, {LEAST_S:g} or more")
    return min(seconds, most)
