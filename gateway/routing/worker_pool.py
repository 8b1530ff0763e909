"""The workers of all models, and which of them are active or on standby. Owned by the router; synchronous."""

from collections.abc import Callable, Collection, Hashable, Iterator
from random import Random

import structlog

from actors.supervision.worker import WorkerState, WorkerStatus, WorkerUnavailable
from gateway.metrics.samples import WorkerSample
from gateway.routing.adapters.registry import AdapterRegistry
from gateway.routing.circuit_breaker import Circuit
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.placement.load_order import LoadOrder, Rank, rank
from gateway.routing.worker_handle import Role, WorkerHandle
from protocol.commands import Stop
from protocol.errors import ErrorCode
from protocol.events import Event, Failed, Finished, Phases

CHECK_ROLES_S = 0.1
"""Time after which requests let the usefulness of all workers be compared again: what only time changes needs seconds,
and the other changes are noticed at once."""

_log = structlog.get_logger("gateway.routing.worker_pool")


class WorkerPool:
    """The worker handles by name, and their roles.

    A model always has as many active workers as it was given. Which workers they are follows from one rule: an active
    worker that cannot serve and a standby that can swap roles. So a restarted worker becomes the next standby.
    """

    def __init__(self, clock: Callable[[], float], chance: Random | None = None) -> None:
        """`chance`: see `LoadOrder`."""
        self._clock = clock
        self._chance = chance
        self._handles: dict[str, WorkerHandle] = {}
        self._orders: dict[str, LoadOrder] = {}
        """Those of each model."""
        self.catalog = ModelCatalog()
        self.runtime = AdapterRegistry()
        """The adapters that were loaded at run time. Changed by `AdapterLoads` alone."""

    def __getitem__(self, worker: str) -> WorkerHandle:
        return self._handles[worker]

    def find(self, worker: str) -> WorkerHandle | None:
        """None for one that is not there, or no longer."""
        return self._handles.get(worker)

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(self._handles.values())

    def add(self, handle: WorkerHandle) -> None:
        """Raises `ValueError` for a second worker of one name."""
        if handle.name in self._handles:
            raise ValueError(f"there is a worker {handle.name!r} already")
        self._handles[handle.name] = handle
        order = self._orders.setdefault(handle.model, LoadOrder(self._chance))
        order.add(handle)
        handle.on_change = order.update

    def remove(self, worker: str) -> None:
        """Remove a worker that has ended."""
        handle = self._handles.pop(worker)
        order = self._orders[handle.model]
        order.remove(handle)
        if not order:
            del self._orders[handle.model]

    def models(self) -> list[str]:
        """Names of the models, in the order in which they were added."""
        return list(self._orders)

    def has(self, model: str) -> bool:
        """A model has workers, whatever their role and state."""
        return model in self._orders

    def adapters(self, model: str) -> tuple[str, ...]:
        """The adapters that requests of a model may name: those of the catalog, or of a worker that has loaded it, and
        those that were loaded at run time."""
        return (*self.fixed_adapters(model), *self.runtime.names(model))

    def fixed_adapters(self, model: str) -> tuple[str, ...]:
        """Those of them that were loaded with the model."""
        known = self.catalog.adapters(model)
        return known or next((each.adapters for each in self._orders.get(model, ()) if each.adapters), ())

    def parent(self, adapter: str) -> str | None:
        """The model that has an adapter; None if none does, and for the name of a model."""
        if (known := self.catalog.parent(adapter)) is not None:
            return known
        if self.has(adapter) or self.catalog.canonical(adapter) != adapter:
            return None
        if (loaded := self.runtime.version(adapter)) is not None:
            return loaded.model
        return next((model for model in self._orders if adapter in self.adapters(model)), None)

    def of(self, model: str) -> list[WorkerHandle]:
        """All workers of a model, whatever their role and state."""
        return list(self._orders.get(model, ()))

    def has_ready(self, model: str) -> bool:
        """A worker of a model is ready, whatever its role."""
        order = self._orders.get(model)
        return order is not None and order.has_ready()

    @property
    def idle(self) -> bool:
        """No worker has a sequence."""
        return not any(order.live for order in self._orders.values())

    def context(self, model: str) -> int | None:
        """The tokens that a prompt and its answer may have together; None while neither a worker of the model nor the
        catalog has it."""
        order = self._orders.get(model)
        known = None if order is None else order.context
        return self.catalog.context(model) if known is None else known

    def room(self, model: str) -> int | None:
        """The sequences that the worker with the most room may have; None while the workers are unknown."""
        order = self._orders.get(model)
        return None if order is None else order.room

    def by_load(self, model: str) -> Iterator[WorkerHandle]:
        """The workers that are ready: active ones, the least loaded first, then standbys."""
        order = self._orders.get(model)
        return iter(()) if order is None else order.by_load()

    def context_terms(self, model: str) -> tuple[int | None, str | None]:
        """Return the context that the model itself declares, and by what that of the worker with the most is bounded;
        both None while unknown or, the latter, where the context is the model's own."""
        hellos = [hello for handle in self.of(model) if (hello := handle.status.hello) is not None]
        most = max(hellos, key=lambda hello: hello.context, default=None)
        if most is not None:
            return most.model_context or None, most.context_bound or None
        entry = self.catalog.find(model)
        return (None, None) if entry is None else (entry.model_context, entry.context_bound or None)

    def samples(self) -> list[WorkerSample]:
        """Sample the workers, for a scrape."""
        return [handle.sample() for handle in self]

    def candidates(self, model: str, *, worst: Rank = Rank.NO_ROOM) -> Iterator[WorkerHandle]:
        """The workers that may get a request of this model now, up to the `worst` rank. First those with a free slot
        and no suspect, then others with a free slot, then the rest; the least loaded of each first, and those that may
        be lost soon last of all. To be read until a sequence is placed."""
        order, now = self._orders.get(model), self._clock()
        if order is None:
            return iter(())
        if now - order.checked_at >= CHECK_ROLES_S:
            self.promote(model)
        return order.candidates(now, worst=worst)

    def free(self, model: str, phases: Phases) -> Iterator[WorkerHandle]:
        """The workers of this role with a free slot, the least loaded first. To be read until a sequence is placed."""
        order = self._orders.get(model)
        return iter(()) if order is None else order.free(phases)

    def of_one_phase(self, model: str) -> Collection[WorkerHandle]:
        """The workers that take requests and are there for the prompts or for the tokens alone."""
        order = self._orders.get(model)
        return () if order is None else order.of_one_phase.keys()

    def preference(self, handle: WorkerHandle) -> tuple[bool, Rank, bool]:
        """Return what comes before the load of a candidate; the smaller, the better."""
        return handle.doubtful(self._clock()), rank(handle), handle.prefills

    def admits(self, handle: WorkerHandle) -> bool:
        """The worker is a candidate."""
        return handle.admits(self._clock())

    def promote(self, model: str) -> None:
        """Swap active workers with standbys that are more useful, the least useful first. A worker that may be lost
        soon is still more useful than one that cannot serve at all."""
        order = self._orders.get(model)
        if order is None or not order.standbys:
            return
        now = order.checked_at = self._clock()
        use = {handle: handle.usefulness(now) for handle in order}
        standbys = sorted((handle for handle in use if handle.role is Role.STANDBY), key=use.__getitem__, reverse=True)
        for handle in sorted((handle for handle in use if handle.role is Role.ACTIVE), key=use.__getitem__):
            if standbys and use[standbys[0]] > use[handle]:
                self.swap(handle, standbys.pop(0))

    def swap(self, active: WorkerHandle, standby: WorkerHandle) -> None:
        """Swap the roles: the standby gets the requests from now on. Live sequences stay where they are."""
        active.role, standby.role = Role.STANDBY, Role.ACTIVE
        standby.promotions += 1
        for handle in (active, standby):
            handle.on_change(handle)
        _log.info("standby_promoted", worker=standby.name, instead_of=active.name, model=active.model)

    def note_end(self, handle: WorkerHandle, event: Event) -> None:
        """Note a sequence's end, for the worker's circuit. Failures that were attributed to the sequence do not
        count."""
        if isinstance(event, Finished):
            if event.reason != "cancelled":  # which says nothing of how it would have ended
                handle.breaker.succeeded()
        elif isinstance(event, Failed) and event.code is ErrorCode.STEP:
            if handle.failed_step not in handle.exemptions:
                self._failed(handle, handle.failed_step, event.text)
        # An internal error is a bug that one request has triggered, and its neighbours have not.
        elif isinstance(event, Failed) and event.code is ErrorCode.INTERNAL and not handle.exemptions.add(event.stream):
            self._failed(handle, event.stream, event.text)

    def _failed(self, handle: WorkerHandle, cause: Hashable, reason: str) -> None:
        now = self._clock()
        before = handle.breaker.state(now)
        handle.breaker.failed(now, cause)
        if before is not Circuit.OPEN and handle.breaker.state(now) is Circuit.OPEN:
            _log.warning("circuit_opened", worker=handle.name, model=handle.model, reason=reason)
            self.promote(handle.model)
            if handle.role is Role.STANDBY:
                self._renew(handle)

    def _renew(self, handle: WorkerHandle) -> None:
        """Stop a standby whose requests fail; its supervisor starts it again."""
        try:
            handle.worker.send_nowait([Stop()])
        except WorkerUnavailable as error:
            _log.info("stop_not_sent", worker=handle.name, reason=str(error))  # it is about to be lost anyway

    def hopeless(self, model: str) -> str | None:
        """Why no worker of this model will recover by itself, in words; None while one may, or is started when a
        request waits."""
        if self.catalog.loads(model) or self.has_ready(model):
            return None
        if problem := self.catalog.problem(model):
            return problem
        handles = self.of(model)
        if not all(_is_out(handle.status) for handle in handles):
            return None
        return "; ".join(f"worker {handle.name} is {_state(handle)}: {handle.status.reason}" for handle in handles)

    def excuse(self, model: str) -> str:
        """The error text for a client when there are no `candidates`."""
        if problem := self.catalog.problem(model):
            return f"model {model!r} could not be loaded: {problem}"
        if self.catalog.loads(model):
            return f"model {model!r} was not loaded in time: try again, it goes on loading"
        if self.hopeless(model) is not None:
            return f"the workers of model {model!r} are out of service"
        if self.has_ready(model):
            return f"the requests of model {model!r} keep failing; its workers get a pause"
        return f"no worker of model {model!r} is ready"


def _is_out(status: WorkerStatus) -> bool:
    """The worker was given up, or stopped; false for one that has not been started yet."""
    return status.state is WorkerState.GIVEN_UP or (status.state is WorkerState.STOPPED and status.incarnation > 0)


def _state(handle: WorkerHandle) -> str:
    return handle.status.state.value.replace("_", " ")
