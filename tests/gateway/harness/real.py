"""A gateway over real worker processes with the scripted backend."""

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec

from actors.supervision.deadlines import Deadlines
from actors.supervision.local import CommandLine
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import WorkerState, WorkerStatus
from actors.supervision.worker_actor import WorkerRef
from actors.system import ActorSystem
from gateway.app import create_app
from gateway.fleet.fleet import Fleet
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.fleet.messages import LatestOperation, StopAll
from gateway.http.server import listen, serve
from gateway.keys.api_keys import ApiKeys
from gateway.models.loader import ModelLoader
from gateway.models.terms import ModelTerms
from gateway.routing.model_catalog import ModelState
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.tracing.traced_request import RequestTraces
from protocol.events import Event, Phases
from workers.faults.plan import Fault
from workers.process.spec import ScriptedSpec, WorkerSpec


def launch(
    name: str,
    *,
    model: str = "tiny",
    slots: int = 4,
    rate: float = 0.0,
    standby: bool = False,
    program: str = "workers",
    faults: Sequence[Fault] = (),
    prefix_cache_dir: str = "",
    role: Phases = "both",
    draft_model: str = "",
    adapter: str = "",
    lora_modules: Sequence[str] = (),
    sparse_prefill_tokens: int = 0,
    max_loras: int = 0,
    path: Path | str = "",
    **scripted: Any,
) -> WorkerLaunch:
    """A scripted worker; `rate` is its decode steps a second, `program` the module that it runs, `prefix_cache_dir` the
    directory of its prefix tier, and `draft_model` the name of a second scripted model, which drafts for it
    and, with `sparse_prefill_tokens`, scores prompts of so many tokens. With `max_loras` requests may load adapters.
    `path` is a checkpoint, for programs that read one."""
    spec = WorkerSpec(
        name=name,
        model_name=model,
        model_path=str(path),
        backend="scripted",
        max_batch_size=slots,
        log_level="warning",
        prefix_cache_bytes=1 << 26 if prefix_cache_dir else 0,
        prefix_cache_dir=prefix_cache_dir,
        role=role,
        speculate="auto" if draft_model else "off",
        draft_model=draft_model,
        draft_name=draft_model,
        adapter=adapter,
        lora_modules=dict.fromkeys(lora_modules, ""),
        runtime_lora=bool(max_loras),
        max_loras=max_loras or 8,
        sparse_prefill=bool(sparse_prefill_tokens),
        sparse_prefill_tokens=sparse_prefill_tokens,
        scripted=ScriptedSpec(tokens_per_second=rate, drafts=bool(draft_model), **scripted),
        faults=tuple(faults),
    )
    return WorkerLaunch(name, model, command_of(spec, program), standby, lambda name, path: _like(spec, name, path))


def command_of(spec: WorkerSpec, program: str = "workers") -> CommandLine:
    """The command of a worker with any backend."""
    text = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        worker = [sys.executable, "-m", program, "--endpoint", endpoint]
        return [*worker, "--incarnation", str(incarnation), "--spec", text]

    return command


def _like(spec: WorkerSpec, name: str, path: str) -> CommandLine:
    """A checkpoint "refused" is none; one "broken", or "broken for NAME", fails to load; any other is served."""
    if path == "refused":
        raise LaunchRefused("there is no such checkpoint")
    faults = (Fault("refuse_load"),) if path in ("broken", f"broken for {name}") else spec.faults
    return command_of(msgspec.structs.replace(spec, name=name, model_path=path, faults=faults))


class WatchedRouter(Router):
    """Looks around in each call that brings a worker's event: what holds for a moment only is not missed."""

    def __init__(self, settings: GatewaySettings, keys: ApiKeys) -> None:
        super().__init__(settings, keys.weight, keys.priority_class)
        self.watches: list[Callable[[], None]] = []

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        super().worker_event(worker, incarnation, event)
        for watch in tuple(self.watches):
            watch()


@dataclass
class Real:
    """A running gateway."""

    port: int
    router: WatchedRouter
    fleet: Fleet
    client: httpx.AsyncClient
    loader: ModelLoader | None = None

    def state(self, model: str) -> ModelState:
        entry = self.router.pool.catalog.find(model)
        assert entry is not None
        return entry.state

    async def until_state(self, model: str, state: ModelState) -> None:
        await self.until(lambda: self.state(model) is state)

    @property
    def workers(self) -> list[WorkerRef]:
        return [member.worker for member in self.fleet.members.values()]

    async def until(self, true: Callable[[], bool], act: Callable[[], None] = lambda: None) -> None:
        """Until this holds, or has held at an event of a worker, however short; `act` is done at that very moment. The
        test's time limit ends a wait in vain."""
        held = False

        def watch() -> None:
            nonlocal held
            if not held and true():
                held = True
                act()

        self.router.watches.append(watch)
        while not held:
            watch()  # not all that is waited for is a worker's word
            await anyio.sleep(0.01)
        self.router.watches.remove(watch)

    async def ready(self, *names: str) -> None:
        """Until every worker, or those named, take requests."""
        wanted = [worker for worker in self.workers if not names or worker.name in names]
        await self.until(lambda: all(worker.status.state is WorkerState.READY for worker in wanted))

    def status(self, index: int = 0) -> WorkerStatus:
        return self.workers[index].status


@asynccontextmanager
async def real_gateway(
    *launches: WorkerLaunch,
    deadlines: Deadlines | None = None,
    ready: Sequence[str] = (),
    traces: RequestTraces | None = None,
    models: Sequence[ModelTerms] = (),
    budget: float = math.inf,
    on_removed: Callable[[str], None] = lambda worker: None,
    **settings: Any,
) -> AsyncIterator[Real]:
    """A gateway on a free port over these workers, all (or those named) ready. It leaves no process behind. With
    `models`, those that are loaded on demand do not run at first."""
    chosen = GatewaySettings(port=0, flush_s=0.1, **settings)
    keys = ApiKeys(chosen)
    router = WatchedRouter(chosen, keys)
    listener = listen(chosen)
    port = listener.getsockname()[1]
    shutdown = anyio.Event()
    async with ActorSystem() as system:
        routes = system.spawn("router", router)
        loader = ModelLoader(router, models, budget) if models else None
        ref_of_models = None if loader is None else system.spawn("models", loader)
        policy = RestartPolicy(first_delay_s=0.01)
        fleet = Fleet(
            router,
            routes,
            launches,
            policy=policy,
            deadlines=deadlines,
            models=ref_of_models,
            on_removed=on_removed,
        )
        ref = system.spawn("fleet", fleet)
        await ref.ask(LatestOperation, timeout=30)  # it has started
        app = create_app(router, chosen, ref, keys=keys, traces=traces, models=ref_of_models)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: serve(app, chosen, shutdown=shutdown, listener=listener))
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
                served = Real(port, router, fleet, client, loader)
                if ready or not models:
                    await served.ready(*ready)
                yield served
            await ref.ask(StopAll, timeout=30)
            shutdown.set()


async def gather(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run calls at once; their results in order."""
    results: list[Any] = [None] * len(calls)

    async def one(index: int) -> None:
        results[index] = await calls[index]()

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(one, index)
    return results
