"""Runs a scenario: the actor system, the router and the fleet of each gateway are those of the product."""

import asyncio
import functools
import itertools
import math
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import psutil

from actors.actor import Ref
from actors.join.request import JoinRequest
from actors.supervision.worker import WorkerNotice
from actors.system import ActorSystem
from bench.simulation.client import ReceivedStream, SimulatedClient, Wanted
from bench.simulation.cost_window import CostWindow
from bench.simulation.engine import MODEL
from bench.simulation.event_loop import SimulationLoop
from bench.simulation.outcome import Cost, FleetOutcome, judge
from bench.simulation.scenario import ClientShare, FleetFault, Scenario
from bench.simulation.worker import RETRY_S, VirtualWorker
from gateway.fleet.fleet import Fleet
from gateway.fleet.messages import FleetMessage, LatestOperation, ReplaceAll
from gateway.fleet.operation import OperationOutcome
from gateway.routing.router import Router
from gateway.settings import GatewaySettings

JOIN_S = 2.0
"""Virtual seconds in which all workers join at the start."""
SLOW = 200.0
"""The factor by which a slow link is slower."""
POLL_S = 1.0
"""Between two looks at an operation, and at the readiness of workers."""
ANSWER_S = 10.0
IDLE_S = 5.0
"""Virtual seconds for which the cost of the fleet without requests is measured."""
WARM_PART = 0.3
"""The cost of requests is measured from the time at which this part of them was sent until all are."""

CreateTask = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task of the gateway. Events of the world are in no task, which anyio's groups would need."""


Watch = Callable[[int], None]
"""Takes the number of live requests."""


@dataclass(slots=True, eq=False)
class Gateway:
    """The process of a gateway, without its HTTP side."""

    router: Router
    routes: Ref[WorkerNotice]
    fleet: Ref[FleetMessage]
    lost: bool = False
    probed: bool = False
    """It was ready once: load balancers send it requests from then on."""
    readers: dict[SimulatedClient, asyncio.Task[None]] = field(default_factory=dict)
    """The clients whose streams it has, and their tasks."""

    def takes_requests(self) -> bool:
        """A load balancer sends it requests."""
        self.probed = self.probed or self.router.pool.has_ready(MODEL)
        return self.probed and not self.lost


class FleetSimulation:
    """One run of a scenario. Must be made on the loop on which it runs."""

    def __init__(self, scenario: Scenario, loop: SimulationLoop, watch: Watch) -> None:
        loop.empty_caches(scenario.cache_bytes)
        self._scenario = scenario
        self._watch = watch
        self._loop = loop
        self._random = random.Random(scenario.seed)
        self._gateways: list[Gateway] = []
        """The last process of each gateway."""
        self._lost_gateways: list[Gateway] = []
        self._workers: list[VirtualWorker] = []
        self._received: list[ReceivedStream] = []
        self._open = 0
        self._all_sent = False
        self._done = asyncio.Event()
        self._operations: list[str] = []
        self._faults_left = len(scenario.faults)
        self._lives = itertools.count()
        self._window = CostWindow(loop)
        least = scenario.requests_per_s * scenario.longest_s
        self._warm = max(int(WARM_PART * scenario.requests), min(scenario.requests // 2, math.ceil(least)))
        """Requests before costs are measured. From then on as many end as begin, unless there are few."""
        self._slow: set[int] = set()
        """Nodes whose network is slow."""

    async def run(self) -> tuple[FleetOutcome, Cost]:
        """Start the fleet, send the requests, and judge what came."""
        scenario, loop, meter = self._scenario, self._loop, self._loop.meter
        process = psutil.Process()
        memory = process.memory_info().rss
        async with ActorSystem() as system, asyncio.TaskGroup() as tasks:
            self._gateways = [self._start_gateway(system) for _ in range(scenario.gateways)]
            self._watch(0)
            meter.model(self._start_workers, tasks.create_task)
            await self._fleet_ready()
            meter.start()
            await anyio.sleep(IDLE_S)
            idle_s, _ = meter.read()
            idle_memory = process.memory_info().rss - memory
            self._watch(0)
            began = loop.time()
            meter.model(self._plan, system, tasks.create_task)
            try:
                await self._done.wait()
            finally:
                self._window.close()
            seconds = loop.time() - began
            memory = process.memory_info().rss - memory
            await self._quiet()
            every = [*self._gateways, *self._lost_gateways]
            left_over = [text for gateway in every for text in ledger(gateway.router)]
        tokens = [worker.engine.tokens for worker in self._workers]
        outcome = judge(scenario, self._received, left_over, self._operations, seconds, tokens)
        window = self._window
        cost = Cost(
            gateway_us=1e6 * window.gateway_s / max(1, window.ended),
            core=window.gateway_s / window.seconds if window.seconds else 0.0,
            model_us=1e6 * window.model_s / max(1, window.ended),
            garbage=window.garbage / max(1, window.ended),
            idle_us=1e6 * idle_s / IDLE_S / scenario.links,
            idle_memory_bytes=idle_memory,
            memory_bytes=memory,
        )
        return outcome, cost

    def _start_gateway(self, system: ActorSystem) -> Gateway:
        weights = tuple(f"{client.name}={client.weight:g}" for client in self._scenario.clients)
        settings = GatewaySettings(key_weights=weights, max_waiting_streams=self._scenario.max_waiting)
        number = next(self._lives)
        router = Router(settings, chance=random.Random(f"{self._scenario.seed} {number}"))
        routes = system.spawn(f"router{number}", router)
        return Gateway(router, routes, system.spawn(f"fleet{number}", Fleet(router, routes, [])))

    def _start_workers(self, create_task: CreateTask) -> None:
        scenario = self._scenario
        keys = self._random.sample(range(scenario.requests), scenario.poison)
        poison = frozenset(key + 1 for key in keys)
        for index in range(scenario.workers):
            own = range(scenario.gateways) if scenario.shared else [index % scenario.gateways]
            node = index // scenario.workers_per_node
            latency = functools.partial(self._latency, node)
            joins = [functools.partial(self._ask_to_join, create_task, number) for number in own]
            worker = VirtualWorker(self._loop, f"w{index}", scenario.engine, joins, latency, poison)
            self._workers.append(worker)
            self._loop.after(self._random.uniform(0.0, JOIN_S), worker.start)

    def _ask_to_join(self, create_task: CreateTask, number: int, request: JoinRequest) -> bool:
        gateway = self._gateways[number]
        if not gateway.lost:
            create_task(_hand_to(request, gateway.fleet))
        return not gateway.lost

    async def _fleet_ready(self) -> None:
        ready = 0
        while ready < self._scenario.links:
            await anyio.sleep(POLL_S)
            ready = sum(handle.ready for gateway in self._gateways for handle in gateway.router.pool)

    # What is to happen.

    def _plan(self, system: ActorSystem, create_task: CreateTask) -> None:
        self._send_next(self._load(), self._loop.time(), create_task)
        for fault in self._scenario.faults:
            self._loop.after(fault.at_s, functools.partial(self._break, fault, system, create_task))

    def _load(self) -> Iterator[Wanted]:
        scenario, chance = self._scenario, self._random
        shares = [client.share for client in scenario.clients]
        at = 0.0
        for number in range(scenario.requests):
            (client,) = chance.choices(scenario.clients, shares)
            yield self._wanted(number, client, at)
            at += chance.expovariate(scenario.requests_per_s)

    def _send_next(self, load: Iterator[Wanted], began: float, create_task: CreateTask) -> None:
        """Send a request at its time, and then the next one."""
        wanted = next(load, None)
        if len(self._received) == self._warm:
            self._window.begin(self._ended)
        if wanted is None:
            self._window.end(self._ended)
            self._watch(self._open)
            self._all_sent = True
            self._check_done()
            return

        def send() -> None:
            self._send(wanted, create_task)
            self._send_next(load, began, create_task)

        self._loop.at(began + wanted.arrives_s, send)

    def _wanted(self, number: int, client: ClientShare, at: float) -> Wanted:
        scenario, chance = self._scenario, self._random
        prompt, output = chance.randint(*scenario.prompt_tokens), chance.randint(*scenario.output_tokens)
        return Wanted(number + 1, client.name, at, prompt, output)

    def _send(self, wanted: Wanted, create_task: CreateTask) -> None:
        client = SimulatedClient(self._loop, wanted)
        self._received.append(client.received)
        self._open += 1
        self._connect(client, create_task)

    def _connect(self, client: SimulatedClient, create_task: CreateTask) -> None:
        """Let a client send its request to one of the gateways that are there, as a load balancer does."""
        there = [gateway for gateway in self._gateways if gateway.takes_requests()]
        if not there:
            self._loop.after(RETRY_S, lambda: self._connect(client, create_task))
            return
        gateway = there[client.received.wanted.key % len(there)]
        gateway.readers[client] = self._loop.meter.gateway(create_task, self._serve(gateway, client))

    async def _serve(self, gateway: Gateway, client: SimulatedClient) -> None:
        await client.run(gateway.router)
        self._loop.meter.model(self._served, gateway, client)

    def _served(self, gateway: Gateway, client: SimulatedClient) -> None:
        del gateway.readers[client]
        self._open -= 1
        self._check_done()

    @property
    def _ended(self) -> int:
        return len(self._received) - self._open

    def _check_done(self) -> None:
        if self._all_sent and not self._open and not self._faults_left:
            self._done.set()

    async def _quiet(self) -> None:
        """Let the ends of cancelled sequences arrive."""
        await anyio.sleep(POLL_S)

    # What breaks.

    def _latency(self, node: int) -> float:
        return self._scenario.latency_s * (SLOW if node in self._slow else 1.0)

    def _node(self, node: int) -> Sequence[VirtualWorker]:
        size = self._scenario.workers_per_node
        return self._workers[node * size : (node + 1) * size]

    def _break(self, fault: FleetFault, system: ActorSystem, create_task: CreateTask) -> None:
        worker = self._workers[fault.target]
        match fault.kind:
            case "node_lost":
                self._lose(self._node(fault.target), fault.duration_s)
            case "rack_lost":
                size = self._scenario.nodes_per_rack * self._scenario.workers_per_node
                self._lose(self._workers[fault.target * size : (fault.target + 1) * size], fault.duration_s)
            case "process_killed":
                worker.kill()
            case "engine_hangs":
                worker.engine.hang()
            case "step_fails":
                worker.engine.fails_step = True
            case "slow_link":
                self._slow_down(fault.target, slow=True)
                self._loop.after(fault.duration_s, lambda: self._slow_down(fault.target, slow=False))
            case "partition":
                for each in self._node(fault.target):
                    each.partition()
                self._loop.after(fault.duration_s, lambda: self._heal(fault.target))
            case "upgrade":
                for each in self._workers:
                    each.version += 1
                create_task(self._upgrade(fault.duration_s))
                return
            case "gateway_lost":
                create_task(self._lose_gateway(fault.target, create_task))
                restart = functools.partial(self._restart_gateway, fault.target, system)
                self._loop.after(fault.duration_s, lambda: self._start_task(create_task, restart))
        self._over()

    def _over(self) -> None:
        self._faults_left -= 1
        self._check_done()

    def _lose(self, workers: Sequence[VirtualWorker], duration_s: float) -> None:
        for worker in workers:
            worker.vanish()
            self._loop.after(duration_s, worker.start)

    async def _lose_gateway(self, number: int, create_task: CreateTask) -> None:
        """End the process of a gateway. Its clients send their requests again, to another one."""
        gateway = self._gateways[number]
        gateway.lost = True
        self._lost_gateways.append(gateway)
        readers, gateway.readers = gateway.readers, {}
        place = number if self._scenario.shared else 0
        own = self._workers if self._scenario.shared else self._workers[number :: self._scenario.gateways]
        links = [link for worker in own if (link := worker.lose_gateway(place)) is not None]
        for task in readers.values():
            task.cancel()
        if readers:
            await asyncio.wait(readers.values())
        for link in links:
            link.report_severed()
        gateway.fleet.stop()
        gateway.routes.stop()
        for client in readers:
            client.begin_again()
            self._connect(client, create_task)

    @staticmethod
    def _start_task(create_task: CreateTask, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        create_task(function())

    async def _restart_gateway(self, number: int, system: ActorSystem) -> None:
        self._gateways[number] = self._start_gateway(system)

    def _slow_down(self, node: int, *, slow: bool) -> None:
        (self._slow.add if slow else self._slow.discard)(node)
        for worker in self._node(node):
            worker.set_latency(self._latency(node))

    def _heal(self, node: int) -> None:
        for worker in self._node(node):
            worker.heal()

    async def _upgrade(self, grace_s: float) -> None:
        """Replace all workers, one after the other, by the fleet's own operation."""
        for gateway in self._gateways:
            await gateway.fleet.ask(functools.partial(ReplaceAll, MODEL, grace_s, ""), timeout=ANSWER_S)
            while True:
                operation = await gateway.fleet.ask(LatestOperation, timeout=ANSWER_S)
                assert operation is not None, "one was begun"
                if operation.outcome is not OperationOutcome.RUNNING:
                    break
                await anyio.sleep(POLL_S)
            self._operations.append(f"{operation.name}: {operation.outcome}")
        self._over()


async def _hand_to(request: JoinRequest, fleet: Ref[JoinRequest]) -> None:
    """Pass on a request to join in a task, as the gateway's listener does."""
    request.hand_to(fleet)


def ledger(router: Router) -> list[str]:
    """Return what a router still has although all requests have ended: nothing, if it is right."""
    held = {
        "live sequences": len(router.sequences()),
        "sequences on workers": sum(len(handle.live) for handle in router.pool),
        "waiting sequences": sum(router.waiting().values()),
        "bytes of bodies": router.bodies.held,
        "bytes of answers": router.answers.held,
        "not idle": int(not router.is_idle),
    }
    return [f"{count} {name}" for name, count in held.items() if count]


def simulate(scenario: Scenario, watch: Watch = lambda live: None) -> tuple[FleetOutcome, Cost]:
    """Run a scenario on an event loop of its own. `watch` is called before workers join, when all are ready, and when
    all requests were sent."""
    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        return runner.run(_run(scenario, watch))


async def _run(scenario: Scenario, watch: Watch) -> tuple[FleetOutcome, Cost]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulationLoop)
    return await FleetSimulation(scenario, loop, watch).run()
