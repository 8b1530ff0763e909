"""Plans the compute threads of the workers on one machine: how many each has, on which cores, and whose memory is near.

Pure: it decides from a `Topology` and the settings `workers`, `threads` and `threads_bind`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from workers.errors import LoadRefused
from workers.host.cpu_list import cpu_list, cpu_text
from workers.host.topology import Core, Topology

AUTO, NO_BIND = "auto", "nobind"
"""Values of `threads_bind` that are no lists of CPUs."""


class BindRefused(LoadRefused):
    """Raised for a `threads_bind` that is not possible; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkerCpus:
    """The CPUs of one worker."""

    threads: int
    """Compute threads."""
    pins: tuple[tuple[int, ...], ...] = ()
    """The CPUs that each compute thread is pinned to; empty without pinning."""
    cpus: tuple[int, ...] = ()
    """The CPUs that the other threads of the engine are bound to as well; empty for all."""
    nodes: tuple[int, ...] = ()
    """The NUMA nodes among which the worker's memory is interleaved, or the one that it is taken from; empty to leave
    that to the kernel."""
    copy: str = ""
    """The name of the copy of the weights that it reads, if workers of different NUMA nodes have one each."""

    def __str__(self) -> str:
        text = f"{self.threads} compute thread{'s' if self.threads > 1 else ''}"
        if self.pins:
            text += f", pinned to CPUs {cpu_text(cpu for pin in self.pins for cpu in pin)}"
        elif self.cpus:
            text += f" on CPUs {cpu_text(self.cpus)}"
        if self.nodes:
            text += f", memory of NUMA node{'s' if len(self.nodes) > 1 else ''} {cpu_text(self.nodes)}"
        return text


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The CPUs of every worker of one machine."""

    workers: tuple[WorkerCpus, ...]
    """By the place of the worker."""
    spare: WorkerCpus
    """Those of a worker without a place: one that stands by, or is started for a rolling restart. It is not pinned, and
    the kernel gives it the cores of the worker whose work it does."""
    not_pinned: str = ""
    """The reason why no thread is pinned; empty if they are."""

    @classmethod
    def of(cls, topology: Topology, workers: int = 1, threads: int = 0, bind: str = AUTO) -> "CpuPlan":
        """Plan so many workers, each with `threads` compute threads, or with its share of the cores if that is 0.

        `bind` is `auto`, `nobind`, or a list of CPUs for each worker, separated by `|`. Raises `BindRefused`.
        """
        if bind not in (AUTO, NO_BIND):
            return _listed(topology, workers, threads, bind)
        shares = _shares(topology.fast_cores, workers)
        each = threads or max(1, min(topology.usable // workers, *(len(share) for share in shares)))
        reason = _why_not(topology, workers, each, bind, shares)
        plain = WorkerCpus(each)
        if reason:
            return cls((plain,) * workers, plain, reason)
        placed = tuple(_placed(topology, share) for share in shares)
        return cls(placed, _spare(placed[0]), "" if placed[0].pins else "the cores are equivalent and share one cache")

    @classmethod
    def of_host(cls, workers: int = 1, threads: int = 0, bind: str = AUTO) -> "CpuPlan":
        """Plan the workers of this machine. Raises `BindRefused`."""
        return cls.of(Topology.of_host(), workers, threads, bind)

    def at(self, place: int | None) -> WorkerCpus:
        """Return the CPUs of the worker at a place, or of one without."""
        return self.spare if place is None else self.workers[place]

    @property
    def advice(self) -> str:
        """A better number of workers for this machine; empty if there is none."""
        nodes = max(len(cpus.nodes) for cpus in self.workers)
        if nodes < 2:
            return ""
        return f"a worker for each NUMA node reads its weights from near memory: --workers {nodes * len(self.workers)}"


def _why_not(topology: Topology, workers: int, each: int, bind: str, shares: Sequence[Sequence[Core]]) -> str:
    """Return why threads are not pinned. Without the whole machine, other programs must be expected on any core."""
    cores = len(topology.fast_cores)
    if bind == NO_BIND:
        return "nobind"
    if not topology.can_bind:
        return "this system does not bind threads to CPUs"
    if topology.quota is not None and topology.quota < cores:
        return f"a CPU quota of {topology.quota:g} is less than {cores} cores, and others use them too"
    if any(each != len(share) for share in shares):
        return f"{workers} x {each} threads do not fill {cores} cores, and others may use them too"
    return ""


def _shares(cores: Sequence[Core], workers: int) -> list[list[Core]]:
    """Divide cores among workers: whole nodes if these have as many each, else equal numbers in their order."""
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    groups, shares = list(nodes.values()), list[list[Core]]()
    if workers % len(groups) == 0:  # each node has the same number of workers
        shares = [share for group in groups for share in _equal(group, workers // len(groups))]
    elif len(groups) % workers == 0:  # each worker has the same number of nodes
        count = len(groups) // workers
        shares = [[core for group in groups[at : at + count] for core in group] for at in range(0, len(groups), count)]
    even = len({len(share) for share in shares}) == 1  # all workers have as many threads as the one with the fewest
    return shares if even else list(_equal(cores, workers))


def _equal(cores: Sequence[Core], parts: int) -> Iterator[list[Core]]:
    """Yield equal parts, which leave a remainder out; cores are shared if there are fewer than parts."""
    size = max(1, len(cores) // parts)
    for part in range(parts):
        start = part * size % len(cores)
        yield list(cores[start : start + size])


def _placed(topology: Topology, share: Sequence[Core]) -> WorkerCpus:
    """Pin a thread for each core to all fast cores with the same cache: there are as many threads as cores.

    A thread that is pinned to one core waits when another program runs there (docs/adr/0074).
    """
    nodes = tuple(dict.fromkeys(core.node for core in share))
    near = _cpus(core for core in topology.cores if core.node in nodes)
    cpus = near if len(nodes) < len(topology.nodes) else ()
    pins = tuple(_near(topology.fast_cores, core) for core in share)
    free = set(pins) == {_cpus(topology.cores)}
    return _with_memory(WorkerCpus(len(share), () if free else pins, cpus), topology, nodes)


def _near(cores: Sequence[Core], core: Core) -> tuple[int, ...]:
    """Return the CPUs of the cores with the same last-level cache, or on the same node if the core shares none: so do
    those of many virtual machines, and of Arm CPUs whose last cache is not listed."""
    sharing = [other for other in cores if other.cache == core.cache]
    return _cpus(sharing if len(sharing) > 1 else [other for other in cores if other.node == core.node])


def _cpus(cores: Iterable[Core]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core.threads))


def _with_memory(cpus: WorkerCpus, topology: Topology, nodes: Iterable[int]) -> WorkerCpus:
    """Add the nodes that memory is taken from, where there is a choice, and the copy of the weights of one node."""
    near = tuple(sorted(topology.memory_nodes.intersection(nodes))) if len(topology.memory_nodes) > 1 else ()
    return replace(cpus, nodes=near, copy=f"node{near[0]}" if len(near) == 1 else "")


def _spare(first: WorkerCpus, cpus: tuple[int, ...] = ()) -> WorkerCpus:
    """Return the CPUs of a worker without a place. It maps the copy of the first one, and leaves its pages there."""
    return WorkerCpus(first.threads, (), cpus, () if first.copy else first.nodes, first.copy)


def _listed(topology: Topology, workers: int, threads: int, bind: str) -> CpuPlan:
    """Plan from lists of CPUs."""
    lists = [_list(topology, text) for text in bind.split("|")]
    if not topology.can_bind:
        raise BindRefused("threads_bind: this system does not bind threads to CPUs; leave the setting out")
    if len(lists) != workers:
        one = "one list of CPUs for each worker, separated by |"
        raise BindRefused(f"threads_bind: {bind!r} has {len(lists)} lists for {workers} workers; write {one}")
    placed = tuple(_on(topology, cpus, threads) for cpus in lists)
    return CpuPlan(placed, _spare(placed[0], tuple(sorted({cpu for cpus in lists for cpu in cpus}))))


def _list(topology: Topology, text: str) -> tuple[int, ...]:
    try:
        cpus = cpu_list(text.strip())
    except ValueError as error:
        allowed = f"{AUTO}, {NO_BIND} or CPUs such as 0-3,8"
        raise BindRefused(f"threads_bind: {error}; write {allowed}") from error
    if not cpus:
        raise BindRefused("threads_bind: a list of CPUs is empty")
    own = [cpu for core in topology.cores for cpu in core.threads]
    if others := set(cpus).difference(own):
        raise BindRefused(
            f"threads_bind: this process may not use CPU {cpu_text(others)}, only {cpu_text(own)}: see its affinity "
            "mask (taskset) and cpuset"
        )
    return cpus


def _on(topology: Topology, cpus: Sequence[int], threads: int) -> WorkerCpus:
    """Plan one worker on a list of CPUs."""
    found = (tuple(cpu for cpu in core.threads if cpu in cpus) for core in topology.cores)
    pins = [pin for pin in found if pin]
    if threads > len(pins):
        raise BindRefused(f"threads: {threads} threads do not fit on the {len(pins)} cores of CPUs {cpu_text(cpus)}")
    count = threads or len(pins)
    nodes = [core.node for core in topology.cores if set(core.threads).intersection(cpus)]
    return _with_memory(WorkerCpus(count, tuple(pins[:count]), tuple(cpus)), topology, nodes)
