"""Runs a scenario: the actor system, the router and the fleet of each gateway are those of the product."""

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import psutil

from actors.actor import Ref
from actors.join.request import JoinRequest
from actors.system import ActorSystem
from bench.simulation.client import ReceivedStream, SimulatedClient, Wanted
from bench.simulation.event_loop import SimulationLoop
from bench.simulation.outcome import Cost, FleetOutcome, judge
from bench.simulation.scenario import ClientShare, FleetFault, Scenario
from bench.simulation.worker import MODEL, VirtualWorker
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

CreateTask = Callable[[Coroutine[Any, Any, None]], object]
"""Starts a task of the gateway. Events of the world are in no task, which anyio's groups would need."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway without its HTTP side."""

    router: Router
    fleet: Ref[FleetMessage]


class FleetSimulation:
    """One run of a scenario. Must be made on the loop on which it runs."""

    def __init__(self, scenario: Scenario, loop: SimulationLoop) -> None:
        self._scenario = scenario
        self._loop = loop
        self._random = random.Random(scenario.seed)
        self._gateways: list[Gateway] = []
        self._workers: list[VirtualWorker] = []
        self._received: list[ReceivedStream] = []
        self._open = 0
        self._all_sent = False
        self._done = asyncio.Event()
        self._operations: list[str] = []
        self._faults_left = len(scenario.faults)
        self._slow: set[int] = set()
        """Nodes whose network is slow."""

    async def run(self) -> tuple[FleetOutcome, Cost]:
        """Start the fleet, send the requests, and judge what came."""
        scenario, loop, meter = self._scenario, self._loop, self._loop.meter
        process = psutil.Process()
        memory = process.memory_info().rss
        async with ActorSystem() as system, asyncio.TaskGroup() as tasks:
            self._gateways = [self._start_gateway(system, number) for number in range(scenario.gateways)]
            meter.model(self._start_workers, tasks.create_task)
            await self._fleet_ready()
            began = loop.time()
            meter.start()
            meter.model(self._plan, tasks.create_task)
            await self._done.wait()
            seconds, (gateway_s, model_s) = loop.time() - began, meter.read()
            memory = process.memory_info().rss - memory
            await self._quiet()
            left_over = [text for gateway in self._gateways for text in ledger(gateway.router)]
        tokens = [worker.tokens for worker in self._workers]
        outcome = judge(scenario, self._received, left_over, self._operations, seconds, tokens)
        return outcome, Cost(1e6 * gateway_s / scenario.requests, gateway_s, model_s, memory)

    def _start_gateway(self, system: ActorSystem, number: int) -> Gateway:
        weights = tuple(f"{client.name}={client.weight:g}" for client in self._scenario.clients)
        router = Router(GatewaySettings(key_weights=weights, max_waiting_streams=self._scenario.max_waiting))
        routes = system.spawn(f"router{number}", router)
        return Gateway(router, system.spawn(f"fleet{number}", Fleet(router, routes, [])))

    def _start_workers(self, create_task: CreateTask) -> None:
        scenario = self._scenario
        keys = self._random.sample(range(scenario.requests), scenario.poison)
        poison = frozenset(key + 1 for key in keys)
        for index in range(scenario.workers):
            fleet = self._gateways[index % scenario.gateways].fleet
            node = index // scenario.workers_per_node
            latency = functools.partial(self._latency, node)
            join = functools.partial(self._ask_to_join, create_task, fleet)
            worker = VirtualWorker(self._loop, f"w{index}", scenario.engine, join, latency, poison)
            self._workers.append(worker)
            self._loop.after(self._random.uniform(0.0, JOIN_S), worker.start)

    @staticmethod
    def _ask_to_join(create_task: CreateTask, fleet: Ref[FleetMessage], request: JoinRequest) -> None:
        create_task(_hand_to(request, fleet))

    async def _fleet_ready(self) -> None:
        handles = [handle for gateway in self._gateways for handle in gateway.router.pool]
        while len(handles) < len(self._workers) or not all(handle.ready for handle in handles):
            await anyio.sleep(POLL_S)
            handles = [handle for gateway in self._gateways for handle in gateway.router.pool]

    # What is to happen.

    def _plan(self, create_task: CreateTask) -> None:
        scenario, loop, chance = self._scenario, self._loop, self._random
        shares = [client.share for client in scenario.clients]
        at = 0.0
        for number in range(scenario.requests):
            (client,) = chance.choices(scenario.clients, shares)
            wanted = self._wanted(number, client, at)
            loop.after(at, functools.partial(self._send, wanted, create_task))
            at += chance.expovariate(scenario.requests_per_s)
        loop.after(at, self._sent)
        for fault in scenario.faults:
            loop.after(fault.at_s, functools.partial(self._break, fault, create_task))

    def _wanted(self, number: int, client: ClientShare, at: float) -> Wanted:
        scenario, chance = self._scenario, self._random
        prompt, output = chance.randint(*scenario.prompt_tokens), chance.randint(*scenario.output_tokens)
        return Wanted(number + 1, client.name, at, prompt, output)

    def _send(self, wanted: Wanted, create_task: CreateTask) -> None:
        router = self._gateways[wanted.key % len(self._gateways)].router
        client = SimulatedClient(self._loop, router, wanted)
        self._received.append(client.received)
        self._open += 1
        self._loop.meter.gateway(create_task, self._serve(client))

    async def _serve(self, client: SimulatedClient) -> None:
        await client.run()
        self._open -= 1
        self._check_done()

    def _sent(self) -> None:
        self._all_sent = True
        self._check_done()

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

    def _break(self, fault: FleetFault, create_task: CreateTask) -> None:
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
                worker.hangs = True
            case "step_fails":
                worker.fails_step = True
            case "slow_link":
                self._slow_down(fault.target, slow=True)
                self._loop.after(fault.duration_s, lambda: self._slow_down(fault.target, slow=False))
            case "partition":
                for each in self._node(fault.target):
                    each.cut()
                self._loop.after(fault.duration_s, lambda: self._heal(fault.target))
            case "upgrade":
                for each in self._workers:
                    each.version += 1
                create_task(self._upgrade(fault.duration_s))
                return
        self._over()

    def _over(self) -> None:
        self._faults_left -= 1
        self._check_done()

    def _lose(self, workers: Sequence[VirtualWorker], duration_s: float) -> None:
        for worker in workers:
            worker.vanish()
            self._loop.after(duration_s, worker.start)

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


def simulate(scenario: Scenario) -> tuple[FleetOutcome, Cost]:
    """Run a scenario on an event loop of its own."""
    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        return runner.run(_run(scenario))


async def _run(scenario: Scenario) -> tuple[FleetOutcome, Cost]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulationLoop)
    return await FleetSimulation(scenario, loop).run()
