"""Samples of what a server holds during a soak, and what it has not released at the end. The judgement is pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from cli.chaos.workers_watcher import WorkersWatcher

WARM_UP = 0.25
"""Share of the samples that memory is not judged by: allocators and caches fill."""
FEWEST = 16
"""Samples by which memory can be judged."""
GROWTH = 0.10
"""Allowed growth of resident memory after the warm-up, as a share."""
SLACK = 16e6
"""Allowed growth in bytes, also where the share is less."""
MORE = {"gateway_descriptors": 0, "gateway_threads": 0, "processes": 0, "worker_descriptors": 16}
"""Allowed growth from before the load to its end. A worker opens graphs and starts compilers when they are first
needed, so one that has served has more open than one that has not."""


@dataclass(frozen=True)
class ServerSample:
    """The server at one moment. Bytes are resident memory; a worker that is ending counts as 0."""

    at_s: float
    gateway_bytes: int
    gateway_descriptors: int
    gateway_threads: int
    processes: int
    """Live processes that the gateway started."""
    worker_bytes: int
    """Resident memory of the largest worker."""
    worker_descriptors: int
    """The most of one worker."""
    streams: int
    """Sequences in slots and queues, by the workers' gauges."""
    restarts: int
    """Restarts of all workers."""


def sample(at_s: float, gateway: int, watcher: WorkersWatcher) -> ServerSample:
    """Sample the gateway with this process id and the processes that it started."""
    process = psutil.Process(gateway)
    with process.oneshot():
        own = process.memory_info().rss, process.num_fds(), process.num_threads()
    children = process.children()
    sizes = [_size(child) for child in children]
    workers = watcher.workers()
    return ServerSample(
        round(at_s, 2),
        *own,
        len(children),
        max((size for size, _ in sizes), default=0),
        max((descriptors for _, descriptors in sizes), default=0),
        sum(each["slots_active"] + each["queue_depth"] for each in workers),
        sum(each["restarts"] for each in workers),
    )


def _size(process: psutil.Process) -> tuple[int, int]:
    try:
        with process.oneshot():
            return process.memory_info().rss, process.num_fds()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0, 0


def leaks(
    idle: ServerSample, samples: Sequence[ServerSample], end: ServerSample, metrics: dict[str, float], slots: int
) -> list[str]:
    """Return a text for each resource that was not released. `idle` was taken before the first fault and `end` after
    the last request, both of an idle server; `samples` between. `metrics` are those of the end, by name, summed;
    `slots` those of all active workers."""
    found = []
    for name, allowed in MORE.items():
        before, after = getattr(idle, name), getattr(end, name)
        if after > before + allowed:
            found.append(f"{name}: {before} before, {after} after")
    if end.streams:
        found.append(f"{end.streams} sequences are in slots and queues of an idle server")
    for name, wanted in {
        "baton_slots_available": slots,
        "baton_live_sequences": 0,
        "baton_waiting_sequences": 0,
    }.items():
        if metrics.get(name, 0.0) != wanted:
            found.append(f"{name} is {metrics.get(name, 0.0):g}, not {wanted}")
    if len(samples) >= FEWEST:
        found += [text for name in ("gateway_bytes", "worker_bytes") if (text := _growth(name, samples))]
    return found


def _growth(name: str, samples: Sequence[ServerSample]) -> str:
    """A text if the medians of the first and the last quarter after the warm-up differ by more than is allowed."""
    judged = [getattr(each, name) for each in samples[int(WARM_UP * len(samples)) :]]
    quarter = len(judged) // 4
    first, last = statistics.median(judged[:quarter]), statistics.median(judged[-quarter:])
    if last - first <= max(GROWTH * first, SLACK):
        return ""
    return f"{name}: grew from {first / 1e6:.1f} to {last / 1e6:.1f} MB"
