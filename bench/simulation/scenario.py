"""The task of a simulation: its fleet, its load, and what breaks when. The same scenario always has the same end."""

from dataclasses import dataclass, field
from typing import Literal

from bench.simulation.engine import EngineModel

FaultKind = Literal[
    "node_lost",
    "rack_lost",
    "process_killed",
    "engine_hangs",
    "step_fails",
    "slow_link",
    "partition",
    "upgrade",
    "gateway_lost",
]


@dataclass(frozen=True, slots=True)
class FleetFault:
    """One thing that breaks, or is done by operators."""

    kind: FaultKind
    at_s: float
    """Seconds after the first request."""
    target: int = 0
    """The node, the rack or the gateway; the worker of the kinds that concern one. An upgrade replaces all workers."""
    duration_s: float = 10.0
    """Seconds until the machine, its network or the gateway is back; the grace of an upgrade."""


@dataclass(frozen=True, slots=True)
class ClientShare:
    """A client with an API key."""

    name: str
    weight: float = 1.0
    share: float = 1.0
    """Its part of the requests, relative to the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulation."""

    workers: int
    requests: int
    seed: int = 0
    gateways: int = 1
    """Each has its part of the requests, and knows of no other."""
    shared: bool = False
    """Each worker joins all gateways. Otherwise each gateway has its part of the workers."""
    workers_per_node: int = 8
    nodes_per_rack: int = 4
    engine: EngineModel = field(default_factory=EngineModel)
    utilization: float = 0.7
    """The load, as a part of what the slots of all workers can compute."""
    prompt_tokens: tuple[int, int] = (16, 128)
    output_tokens: tuple[int, int] = (8, 40)
    clients: tuple[ClientShare, ...] = (ClientShare("a"), ClientShare("b"))
    faults: tuple[FleetFault, ...] = ()
    poison: int = 0
    """Requests that kill the worker that computes them."""
    cache_bytes: int = 0
    """Memory that is read before each message of a worker. With more than the caches have, the gateway's code is run
    as after other work, and not as if it were alone on its core."""
    latency_s: float = 0.0005
    max_waiting: int = 1 << 16
    """Places in the queue of a gateway. With fewer, requests are refused under overload."""

    def __post_init__(self) -> None:
        """Raises `ValueError` that names the field that is out of range."""
        if not 1 <= self.gateways <= self.workers:
            raise ValueError(f"gateways: {self.gateways} is not between 1 and the {self.workers} workers")
        if not 0 <= self.poison <= self.requests:
            raise ValueError(f"poison: {self.poison} is not between 0 and the {self.requests} requests")
        for name in ("workers", "requests", "workers_per_node", "nodes_per_rack", "utilization"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name}: {low} to {high} is no range of positive numbers")
        for fault in self.faults:
            most = dict.fromkeys(("node_lost", "slow_link", "partition"), self.nodes)
            most |= {"rack_lost": self.racks, "gateway_lost": self.gateways}
            if not 0 <= fault.target < most.get(fault.kind, self.workers):
                raise ValueError(f"faults: {fault.kind} of {fault.target} is outside of the fleet")
        kinds = {fault.kind for fault in self.faults}
        if "upgrade" in kinds and (self.shared or "gateway_lost" in kinds):
            raise ValueError("faults: an upgrade needs gateways that stay, and workers of their own")

    @property
    def links(self) -> int:
        """Links between workers and gateways."""
        return self.workers * (self.gateways if self.shared else 1)

    @property
    def nodes(self) -> int:
        """Machines with workers."""
        return -(-self.workers // self.workers_per_node)

    @property
    def racks(self) -> int:
        """Groups of machines that fail together."""
        return -(-self.nodes // self.nodes_per_rack)

    @property
    def service_s(self) -> float:
        """Seconds of a slot that a request takes on average, on a worker with all slots busy."""
        return self._slot_s(sum(self.prompt_tokens) / 2, sum(self.output_tokens) / 2)

    @property
    def longest_s(self) -> float:
        """Seconds of a slot that the largest request takes, likewise."""
        return self._slot_s(self.prompt_tokens[1], self.output_tokens[1])

    def _slot_s(self, prompt: float, output: float) -> float:
        engine = self.engine
        # A prompt makes the step longer for all rows of its worker.
        return output * (engine.step_s + engine.row_s * engine.slots) + prompt * engine.prefill_s * engine.slots

    @property
    def requests_per_s(self) -> float:
        """The rate at which requests come."""
        return self.utilization * self.workers * self.engine.slots / self.service_s
