"""State and histograms of each worker, of which a scrape is made."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Counter

from gateway.metrics.histogram import Histogram


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker at one scrape."""

    model: str
    backend: str
    worker: str
    counts: Callable[[str], int]
    slots_available: int
    queue_depth: int
    kv_tokens: int
    kv_capacity: int
    memory_bytes: int
    retained_tokens: int
    stored_bytes: int
    state_cache_bytes: int
    image_cache_bytes: int
    prefix_digests: int
    live: int
    ready: bool
    restarts: int
    standby: bool
    phases: str
    promotions: int
    circuit_open: bool


@dataclass(frozen=True, slots=True)
class FrontSample:
    """One front at one scrape."""

    front: int
    ready: bool
    connections: int
    restarts: int
    cpu_s: float
    memory_bytes: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """The histograms of one worker, in seconds or tokens, and `ended`, its counter of ends by outcome."""

    first_token: Histogram
    inter_token: Histogram
    queue_wait: Histogram
    prefill: Histogram
    decode: Histogram
    output_token: Histogram
    end_to_end: Histogram
    gap: Histogram
    prompt_tokens: Histogram
    completion_tokens: Histogram
    ended: Callable[[str], Counter]


Samples = Callable[[], Iterable[WorkerSample]]
"""Returns the workers as they are now."""
Waiting = Callable[[], Mapping[str, int]]
"""Returns the sequences without a worker, by model."""
ObservedByWorker = Mapping[tuple[str, str, str], Observed]
"""The histograms by model, backend and worker."""
