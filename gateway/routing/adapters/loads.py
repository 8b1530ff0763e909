"""Keeps the adapters of workers as the registry has them: of those that are there, start, restart or join."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from actors.supervision.worker import WorkerState, WorkerUnavailable
from gateway.metrics.adapter_collector import AdapterSample
from gateway.routing.adapters.registry import AdapterRegistry, AdapterVersion
from gateway.routing.adapters.worker_adapters import WorkerAdapters, load_command
from gateway.routing.failure import RequestFailure
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.bounds import MAX_ADAPTERS
from protocol.commands import Command
from protocol.errors import ErrorCode
from protocol.events import AdapterChanged

CHECK_S = 0.1
"""A pause before it is checked again whether sequences have a retired version, and before a full link is tried
again."""
LOAD_S = 300.0
"""Time for all workers of a model to load an adapter."""

_RETURNING = (WorkerState.STARTING, WorkerState.LOADING, WorkerState.BACKOFF)

_log = structlog.get_logger("gateway.routing.adapters.loads")


class AdapterRefused(Exception):
    """Raised when an adapter cannot be loaded; the message says why. `unavailable` is true if it may be later."""

    def __init__(self, text: str, *, unavailable: bool = False) -> None:
        super().__init__(text)
        self.unavailable = unavailable


@dataclass(slots=True)
class _Load:
    """A load that a client waits for."""

    waiting: set[str]
    """The workers that have not answered."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    loaded: bool = False
    problem: str = ""


class AdapterLoads:
    """Asks workers to load and unload adapters. Used on the event loop; owns what each worker was asked for."""

    def __init__(
        self,
        pool: WorkerPool,
        live: Callable[[], Iterable[LiveSequence]],
        serve: Callable[[str], None],
        fail: Callable[[LiveSequence, RequestFailure], None],
        uncount: Callable[[str, str], None] = lambda model, adapter: None,
    ) -> None:
        """`live` returns the sequences of all models, `serve` is called for a model whose worker has got an adapter,
        `fail` for a sequence whose adapter no worker can load any more, and `uncount` with a model and the name of an
        adapter of it that is gone."""
        self._uncount = uncount
        self._pool = pool
        self._live = live
        self._serve = serve
        self._fail = fail
        self._workers: dict[str, WorkerAdapters] = {}
        self._loads: dict[str, _Load] = {}
        """By the name of the version on workers."""
        self._check: asyncio.TimerHandle | None = None
        self.forgotten: Callable[[AdapterVersion], None] = lambda version: None
        """Called for a version that workers need not load any more."""

    @property
    def registry(self) -> AdapterRegistry:
        """The versions."""
        return self._pool.runtime

    def places(self, model: str) -> int:
        """Return how many adapters may be loaded at run time. Raises `AdapterRefused` if no worker is ready, or if one
        takes none."""
        ready = [handle for handle in self._pool.of(model) if handle.ready]
        if not ready:
            raise AdapterRefused(f"no worker of {model!r} is ready: try again when one is", unavailable=True)
        for handle in ready:
            if not _places(handle):
                text = f"worker {handle.name} loads no adapters at run time"
                raise AdapterRefused(f"{text}: start it with --lora-dir, with more --max-loras, and for one gateway")
        return min(map(_places, ready))

    async def load(self, name: str, model: str, digest: str, paths: tuple[str, ...]) -> AdapterVersion:
        """Load an adapter on all workers of a model, and let requests name it. Those that are being answered keep the
        version that they have. Raises `AdapterRefused`, after which no worker has it."""
        wire = AdapterVersion(name, model, 1, digest, paths).wire
        version = self.registry.find(wire)
        if wire in self._loads:
            raise AdapterRefused(f"adapter {name!r} is being loaded", unavailable=True)
        if version is not None and version.model != model:
            text = f"{version.model!r} has this adapter under the name {name!r}, or requests that are not answered yet"
            raise AdapterRefused(f"{text}: unload it, or take another name")
        if version is None:
            places = self.places(model)
            self._forget_retired()  # one that was just unloaded makes room
            if (number := self.registry.free_number(model, places)) is None:
                text = f"{places} adapters are loaded, or have requests that are not answered yet"
                raise AdapterRefused(f"{text}: unload one, or set --max-loras to more")
            version = AdapterVersion(name, model, number, digest, paths)
            await self._load(version)
        self.registry.publish(version)
        self._check_soon()
        _log.info("adapter_loaded", adapter=name, model=model, digest=digest, number=version.number)
        return version

    async def _load(self, version: AdapterVersion) -> None:
        self.registry.want(version)
        handles = [handle for handle in self._pool.of(version.model) if handle.ready]
        for state in self._workers.values():  # it may have refused it before
            state.refused.pop(version.wire, None)
        load = self._loads[version.wire] = _Load({handle.name for handle in handles})
        problem = f"not all workers of {version.model!r} have loaded it within {LOAD_S:g} s"
        try:
            for handle in handles:
                self.changed(handle)
                if version.wire in handle.loaded_adapters:
                    self._note(version.wire, handle.name, loaded=True)
            async with asyncio.timeout(LOAD_S):
                await load.done.wait()
            problem = load.problem or ("" if load.loaded else f"no worker of {version.model!r} is left")
        except TimeoutError:
            pass
        finally:
            del self._loads[version.wire]
            if problem:
                self._forget(version)
        if problem:
            raise AdapterRefused(problem, unavailable=not load.problem)

    def restore(self, name: str, model: str, digest: str, paths: tuple[str, ...]) -> bool:
        """Let requests name an adapter that an earlier gateway had loaded, and workers load it when they are ready.
        False if its model has `MAX_ADAPTERS` already."""
        if (number := self.registry.free_number(model, MAX_ADAPTERS)) is None:
            return False
        version = AdapterVersion(name, model, number, digest, paths)
        self.registry.want(version)
        self.registry.publish(version)
        for handle in self._pool.of(model):
            self.changed(handle)
        return True

    def unload(self, name: str) -> bool:
        """Let no more requests name an adapter. Those that have it are answered with it, and workers forget it then.
        False if there is none."""
        version = self.registry.retire(name)
        if version is not None:
            _log.info("adapter_unloaded", adapter=name, model=version.model, digest=version.digest)
            self._check_soon()
        return version is not None

    def changed(self, handle: WorkerHandle) -> None:
        """Ask a worker for what it lacks, and let it forget what is not wanted. Called when its state has changed."""
        if not handle.ready:
            return
        state = self._workers.get(handle.name)
        if state is None or state.incarnation != handle.incarnation:
            state = self._workers[handle.name] = WorkerAdapters(handle.incarnation)
        state.compare(self.registry)
        handle.loaded_adapters = set(state.loaded)
        places = _places(handle)
        for version in state.without_place(self.registry.wanted(handle.model), places):
            self._refused(handle, version, f"it has room for {places} adapters at run time: raise max_loras")
        loads = state.loads(self.registry.wanted(handle.model), places)
        commands: list[Command] = [*state.unloads(), *(load_command(query, each) for query, each in loads.items())]
        if not commands:
            return
        try:
            handle.worker.send_nowait(commands)
        except WorkerUnavailable:
            asyncio.get_running_loop().call_later(CHECK_S, self._again, handle.name)
        else:
            state.sent(loads)

    def samples(self) -> dict[str, AdapterSample]:
        """Return the adapters of each model that has some, for a scrape."""
        running: dict[str, set[str]] = {}
        waiting: dict[str, set[str]] = {}
        for sequence in self._live():
            if adapter := sequence.request.adapter:
                by_model = running if sequence.worker else waiting
                by_model.setdefault(sequence.request.model, set()).add(adapter)
        found: dict[str, AdapterSample] = {}
        for model in self._pool.models():
            if adapters := self._pool.adapters(model):
                handles = [handle for handle in self._pool.of(model) if handle.ready]
                places = len(self._pool.fixed_adapters(model)) + min(map(_places, handles), default=0)
                own = [frozenset(each.get(model, ())) for each in (running, waiting)]
                found[model] = AdapterSample(adapters, max(places, 1), *own)
        return found

    def _again(self, worker: str) -> None:
        if (handle := self._pool.find(worker)) is not None:
            self.changed(handle)

    def take(self, handle: WorkerHandle, event: AdapterChanged) -> None:
        """Take the answer of a worker."""
        if (state := self._workers.get(handle.name)) is None:
            return
        version = state.answered(event.query, refused=bool(event.text), registry=self.registry)
        if version is not None:
            if event.text:
                self._refused(handle, version, event.text)
            else:
                self._note(version.wire, handle.name, loaded=True)
        self.changed(handle)
        self._serve(handle.model)

    def _refused(self, handle: WorkerHandle, version: AdapterVersion, problem: str) -> None:
        """A worker cannot load a version, which its state has among the refused ones."""
        _log.warning("adapter_refused", worker=handle.name, adapter=version.wire, problem=problem)
        self._note(version.wire, handle.name, problem=problem)
        self._give_up(version.wire)

    def lost(self, handle: WorkerHandle) -> None:
        """An incarnation is gone, with all that it had loaded."""
        handle.loaded_adapters.clear()
        self._workers.pop(handle.name, None)
        for wire in self._loads:  # also those for which its link was full
            self._note(wire, handle.name)

    def _note(self, wire: str, worker: str, *, loaded: bool = False, problem: str = "") -> None:
        """Note that a worker has ended a load; without `loaded` and a `problem`, it is gone."""
        if (load := self._loads.get(wire)) is None:
            return
        load.waiting.discard(worker)
        load.loaded = load.loaded or loaded
        load.problem = load.problem or problem
        if problem or not load.waiting:
            load.done.set()

    def _give_up(self, wire: str) -> None:
        """Forget a version that was published and that no worker has, is loading or will load once it is back: one that
        was started again could not read it."""
        version = self.registry.find(wire)
        if version is None or wire in self._loads:
            return
        for handle in self._pool.of(version.model):
            state = self._workers.get(handle.name)
            if handle.ready and (state is None or wire not in state.refused):
                return
            if handle.worker.status.state in _RETURNING:
                return
        _log.error("adapter_lost", adapter=version.name, model=version.model, digest=version.digest)
        if self.registry.version(version.name) is version:
            self.registry.retire(version.name)
        text = f"no worker could load the adapter {version.name!r} again: load it anew"
        for sequence in [each for each in self._live() if each.submit.adapter == wire]:
            self._fail(sequence, RequestFailure(ErrorCode.UNAVAILABLE, text))
        self._forget(version)

    def _forget(self, version: AdapterVersion) -> None:
        self.registry.drop(version.wire)
        if all(each.name != version.name for each in self.registry.wanted(version.model)):
            self._uncount(version.model, version.name)
        for handle in self._pool.of(version.model):
            self.changed(handle)
        self.forgotten(version)

    def _check_soon(self) -> None:
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._check_retired)

    def _check_retired(self) -> None:
        self._check = None
        if self._forget_retired():
            self._check_soon()

    def _forget_retired(self) -> bool:
        """Forget the retired versions that no sequence has. Returns whether there are others."""
        retired = [each for each in self.registry.retired() if each.wire not in self._loads]
        if not retired:
            return False
        used = {sequence.submit.adapter for sequence in self._live()}
        for version in retired:
            if version.wire not in used:
                self._forget(version)
        return any(version.wire in used for version in retired)


def _places(handle: WorkerHandle) -> int:
    ready = handle.status.ready
    return 0 if ready is None else ready.adapter_places
