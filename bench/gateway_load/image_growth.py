"""Growth of a server over many requests with images: the resident memory of its gateway and its workers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median

import psutil

CLIENTS = 8
"""Requests at once."""
SAMPLES = 40
"""Times that memory is read."""
WARM_UP = 4
"""The first of so many equal parts of the requests is warm-up, and a part is as long as what is compared."""


@dataclass
class ProcessMemory:
    """The resident memory of one process, and how it has changed."""

    name: str
    process: psutil.Process
    samples: list[tuple[int, int]] = field(default_factory=list)
    """Requests that had ended, and the resident bytes then."""

    def note(self, ended: int) -> None:
        """Read the resident memory."""
        self.samples.append((ended, self.process.memory_info().rss))

    def growth(self) -> float:
        """Return the bytes a request from the part behind the warm-up to the last one, by their medians."""
        part = max(1, len(self.samples) // WARM_UP)
        after, last = self.samples[part : 2 * part] or self.samples[-1:], self.samples[-part:]
        (first, before), (second, behind) = (
            (median(ended for ended, _ in each), median(size for _, size in each)) for each in (after, last)
        )
        return (behind - before) / max(1.0, second - first)


def processes(server: int) -> list[ProcessMemory]:
    """Return the gateway of a server and its workers."""
    gateway = psutil.Process(server)
    workers = [each for each in gateway.children(recursive=True) if "workers" in each.cmdline()]
    return [
        ProcessMemory("gateway", gateway),
        *(ProcessMemory(f"worker {at}", each) for at, each in enumerate(workers)),
    ]


async def send_all(ask: Callable[[], Awaitable[object]], count: int, watched: list[ProcessMemory]) -> None:
    """Send so many requests by `CLIENTS` clients, and note the memory meanwhile."""
    sent = ended = 0

    async def client() -> None:
        nonlocal sent, ended
        while sent < count:
            sent += 1
            await ask()
            ended += 1
            if ended % max(1, count // SAMPLES) == 0:
                for each in watched:
                    each.note(ended)

    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(client())


def report(watched: list[ProcessMemory], tolerance: float) -> int:
    """Print the growth of each process, and return 1 if one is over the tolerance, in bytes a request."""
    for each in watched:
        ended, size = each.samples[-1]
        print(f"{each.name:10} {size / 1e6:7.1f} MB after {ended} requests, {each.growth():+.0f} bytes a request")
    return int(any(each.growth() > tolerance for each in watched))
