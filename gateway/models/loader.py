"""The actor that loads and unloads models: it carries out what `gateway.models.residency` decides."""

import asyncio
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from actors.actor import Actor, ActorStopped, DeferredReplies, ReplyTo, Terminated
from actors.mailbox import MailboxFull
from actors.supervision.messages import StartWorker, StopWorker
from actors.supervision.worker import WorkerChanged, WorkerState, WorkerStatus
from actors.supervision.worker_actor import WorkerRef
from gateway.models import messages as msg
from gateway.models.residency import (
    Decision,
    HoldModel,
    OfferModel,
    PrepareModel,
    RefuseModel,
    ReleaseModel,
    Residency,
    Resident,
    StartModel,
    StopModel,
)
from gateway.models.terms import ModelTerms, ModelUnavailable
from gateway.routing.model_catalog import Activity, CatalogEntry, ModelState
from gateway.routing.router import Router

STOPPED_TEXT = "its workers were stopped, until somebody restarts one"
_log = structlog.get_logger("gateway.models.loader")


@dataclass(slots=True, eq=False)
class _LocalWorker:
    """A worker of this machine."""

    ref: WorkerRef
    model: str
    after: int
    """The incarnation before the one that was asked for last: what is known of it says nothing of the next one."""
    asked: bool = False
    """It was asked to start."""
    extra: bool = False
    """It belongs to an operation, which has taken memory for it."""
    drained: bool = False
    """Somebody has stopped it: it is not loaded with its model."""

    @property
    def status(self) -> WorkerStatus:
        return self.ref.status

    @property
    def begun(self) -> bool:
        """An incarnation that was asked for last has begun."""
        return self.status.incarnation > self.after

    @property
    def over(self) -> bool:
        """It has begun and ended."""
        return self.begun and not self.status.running

    @property
    def gone(self) -> bool:
        """It does not run, and is not about to."""
        return not self.status.running and (self.begun or not self.asked)

    def start(self) -> None:
        self.after, self.asked = self.status.incarnation, True
        self.ref.ref.tell(StartWorker())


@dataclass(slots=True)
class _Workers:
    """The workers of one model."""

    all: dict[str, _LocalWorker] = field(default_factory=dict)

    @property
    def used(self) -> list[_LocalWorker]:
        """Those that run while the model is loaded."""
        return [each for each in self.all.values() if not each.drained]

    @property
    def own(self) -> int:
        """Their number, without extra ones."""
        return sum(not each.extra for each in self.all.values())


class ModelLoader(Actor[msg.LoaderMessage]):
    """Owns which models are loaded, and the life in their entries of the router's catalog.

    It starts and stops the workers of this machine that the fleet has added. Everything that it decides takes effect
    within one message: no request gets to a worker between the decision to unload it and its end.
    """

    def __init__(self, router: Router, models: Sequence[ModelTerms], budget: float = math.inf) -> None:
        """`budget`: bytes of all models. Raises `ValueError` for a name twice."""
        self._router = router
        self.residency = Residency(models, budget)
        self._entries: dict[str, CatalogEntry] = {}
        self._workers = {each.name: _Workers() for each in models}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._noted = False
        """An `ActivityChanged` is on its way."""
        self._deferred = DeferredReplies()
        for each in models:
            on_demand = each.load == "first-use"
            entry = CatalogEntry(each.name, each.aliases, each.adapters, on_demand=on_demand, loads=True)
            _describe(entry, each)
            router.pool.catalog.add(entry)
            self._entries[each.name] = entry

    def started(self) -> None:
        self._router.watch_activity(self._note_activity)
        for resident in self.residency:
            self._router.metrics.watch_model(resident.name, functools.partial(getattr, resident, "charged"))

    async def stopped(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def handle(self, message: msg.LoaderMessage) -> None:
        """See `LoaderMessage`."""
        match message:
            case WorkerChanged(status):
                self._changed(status)
            case msg.WorkerAdded(ref, model, started):
                self._add(ref, model, started)
            case msg.WorkerRemoved(name):
                if (worker := self._find(name)) is not None:
                    del self._workers[worker.model].all[name]
                    self._release_extra(worker.model)
            case msg.WorkerDrained(name):
                if (worker := self._find(name)) is not None and not worker.status.running:
                    worker.drained = True
            case msg.StartOne(name, reply):
                self._start_one(name, reply)
            case msg.PinModel(model) if model in self.residency:
                self.residency.pin(model)
            case msg.UnpinModel(model) if model in self.residency:
                self.residency.unpin(model)
                self._release_extra(model)
                self._check_ends(model)
            case msg.ReserveMemory(model, reply):
                reply.send(self._reserve(model))
            case msg.LoadModel(model, reply) | msg.UnloadModel(model, reply) | msg.ReloadModel(model, reply):
                self._operate(message, model, reply)
            case msg.KeepModel(model) if model in self.residency:
                self.residency.stay(model)
            case msg.KeepAlive(model, seconds) if model in self.residency:
                self.residency.keep_alive(model, seconds)
            case msg.ModelPrepared(terms):
                self.residency.prepared(terms)
                _describe(self._entries[terms.name], terms)
            case msg.ModelNotPrepared(model, reason):
                self._carry_out(self.residency.failed(model, reason, self._loop.time()))
            case msg.ActivityChanged():
                self._noted = False
            case msg.TimeCame():
                self._timer = None
            case Terminated():
                return  # its last `WorkerChanged` said that it does not run
        self._step()

    # Requests of the fleet, of operators and of clients.

    def _add(self, worker: WorkerRef, model: str, started: bool) -> None:
        if model not in self.residency:
            if not started:
                worker.ref.tell(StartWorker())
            return
        # One that was just asked to start may have no incarnation yet.
        added = _LocalWorker(worker, model, worker.status.incarnation, asked=started, extra=started)
        self._workers[model].all[worker.name] = added
        if not started and self.residency[model].state in (ModelState.LOADING, ModelState.LOADED):
            added.start()

    def _start_one(self, name: str, reply: ReplyTo[bool]) -> None:
        each = self._find(name)
        if each is None:
            reply.fail(KeyError(name))
            return
        each.drained = False
        resident = self.residency[each.model]
        before = each.status.incarnation
        if resident.state in (ModelState.LOADING, ModelState.LOADED):
            each.start()
        else:
            self.residency.ask(each.model)
        self._deferred.add(reply, lambda: _started(each, before, resident))

    def _find(self, name: str) -> _LocalWorker | None:
        return next((workers.all[name] for workers in self._workers.values() if name in workers.all), None)

    def _reserve(self, model: str) -> bool:
        return model not in self.residency or self.residency.reserve(model, self._bytes_of_one(model))

    def _bytes_of_one(self, model: str) -> int:
        return self.residency[model].bytes // max(1, self._workers[model].own)

    def _release_extra(self, model: str) -> None:
        """Return the memory of extra workers that have left. One that stays after its operation keeps its own."""
        if not self.residency[model].pins:
            extra = sum(each.extra for each in self._workers[model].all.values())
            self.residency.keep_extra(model, extra * self._bytes_of_one(model))

    def _operate(
        self, message: msg.LoadModel | msg.UnloadModel | msg.ReloadModel, model: str, reply: ReplyTo[bool]
    ) -> None:
        if model not in self.residency:
            reply.fail(KeyError(model))
            return
        resident = self.residency[model]
        present = resident.state not in (ModelState.UNLOADED, ModelState.FAILED)
        if not isinstance(message, msg.LoadModel):
            self.residency.leave(model)
        if isinstance(message, msg.UnloadModel):
            unloads = resident.unloads + present
            self._deferred.add(reply, lambda: _unloaded(resident, unloads))
            return
        loads = resident.loads + (resident.state is not ModelState.LOADED or resident.leaving)
        self.residency.ask(model)
        if isinstance(message, msg.LoadModel):
            self._deferred.add(reply, lambda: _stays_loaded(resident) or _loaded(resident, loads))
        else:
            self._deferred.add(reply, lambda: _loaded(resident, loads))

    # Facts about workers.

    def _changed(self, status: WorkerStatus) -> None:
        model = next((model for model, workers in self._workers.items() if status.name in workers.all), None)
        if model is None:
            return
        workers, resident = self._workers[model], self.residency[model]
        worker = workers.all[status.name]
        if resident.state in (ModelState.LOADING, ModelState.LOADED) and worker.over:
            worker.drained = worker.status.state is WorkerState.STOPPED
        ready = [each for each in workers.used if each.begun and each.status.state is WorkerState.READY]
        if resident.state in (ModelState.LOADING, ModelState.LOADED) and ready:
            if resident.state is ModelState.LOADING:
                self._router.metrics.model_changed(model, "loaded")
            self.residency.loaded(model, self._loop.time(), _bytes(ready, workers.own))
        self._check_ends(model)

    def _check_ends(self, model: str) -> None:
        """Note the end of all workers of a model."""
        workers, resident = self._workers[model], self.residency[model]
        if not workers.all:
            return  # the fleet has not added them yet
        if resident.state is ModelState.UNLOADING:
            if all(each.gone for each in workers.all.values()):
                self.residency.ended(model)
        elif resident.state is ModelState.LOADED and resident.pins:
            pass  # the operation may start one again, such as with its old checkpoint: this is checked at its end
        elif resident.state in (ModelState.LOADING, ModelState.LOADED) and all(each.over for each in workers.used):
            reasons = "; ".join(f"worker {each.ref.name}: {each.status.reason}" for each in workers.used)
            retries = bool(reasons)
            self._carry_out(self.residency.failed(model, reasons or STOPPED_TEXT, self._loop.time(), retries=retries))

    # Decisions.

    def _step(self) -> None:
        """Carry out what follows from the facts so far, until nothing more does."""
        activity = self._activity()
        while decisions := self.residency.step(self._loop.time(), activity):
            self._carry_out(decisions)
            for each in decisions:
                if isinstance(each, StartModel | StopModel):
                    self._check_ends(each.model)
            activity = self._activity()
        for resident in self.residency:
            entry = self._entries[resident.name]
            entry.state, entry.bytes = resident.shown, resident.bytes
            entry.operated = resident.pins > 0
            entry.last_used, entry.keep_alive_s = resident.last_used, resident.keep_alive_s
        self._deferred.settle()
        self._set_timer(self.residency.due)

    def _activity(self) -> dict[str, Activity]:
        """Count the requests of each model. Those that a worker of another machine has do not need this one."""
        return {name: self._router.activity(name, workers.all) for name, workers in self._workers.items()}

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            model = decision.model
            entry, workers = self._entries[model], self._workers[model]
            match decision:
                case PrepareModel():
                    self.context.start_soon(self._prepare, model)
                case StartModel():
                    _log.info("model_loads", model=model, bytes=self.residency[model].bytes)
                    for each in workers.used:
                        each.start()
                case StopModel():
                    _log.info("model_unloads", model=model)
                    self._router.metrics.model_changed(model, "unloaded")
                    self._router.retire(workers.all)
                    for each in workers.all.values():
                        if not each.gone:
                            each.ref.ref.tell(StopWorker(), urgent=True)
                case HoldModel():
                    _log.info("model_held", model=model)
                case ReleaseModel():
                    _log.info("model_released", model=model)
                case RefuseModel(reason=reason):
                    _log.warning("model_failed", model=model, reason=reason)
                    self._router.metrics.model_changed(model, "failed")
                case OfferModel():
                    pass
            entry.held = isinstance(decision, HoldModel)
            entry.loads = not isinstance(decision, RefuseModel)
            entry.problem = decision.reason if isinstance(decision, RefuseModel) else ""
            self._router.model_changed(model)

    async def _prepare(self, model: str) -> None:
        """A task of the loader, whose result is a message to it."""
        prepare = self.residency[model].terms.prepare
        assert prepare is not None, "others are prepared"
        try:
            message: msg.LoaderMessage = msg.ModelPrepared(await prepare())
        except ModelUnavailable as error:
            message = msg.ModelNotPrepared(model, str(error))
        except Exception as error:  # noqa: BLE001  a bug ends this load, and not the others
            _log.error("preparation_failed", model=model, exc_info=error)
            message = msg.ModelNotPrepared(model, f"internal error: {type(error).__name__}: {error}")
        self.context.ref.tell(message, urgent=True)

    # Wake-ups.

    def _note_activity(self) -> None:
        """Called by the router, inside its methods: decided is later in this turn of the event loop."""
        if not self._noted:
            self._noted = True
            self._loop.call_soon(self._post, msg.ActivityChanged())

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due == math.inf else self._loop.call_at(due, self._post, msg.TimeCame())

    def _post(self, message: msg.ActivityChanged | msg.TimeCame) -> None:
        try:
            self.context.ref.tell(message, urgent=True)
        except ActorStopped:
            pass
        except MailboxFull:  # each of the messages that wait leads to a decision
            self._noted = False


def _describe(entry: CatalogEntry, terms: ModelTerms) -> None:
    """Take over what is known of a model without a worker."""
    entry.context, entry.model_context, entry.context_bound = terms.context, terms.model_context, terms.context_bound
    entry.backend, entry.quantization, entry.kv_dtype = terms.backend, terms.quantization, terms.kv_dtype


def _started(worker: _LocalWorker, before: int, resident: Resident) -> bool | None:
    """True once a later incarnation runs; None before. Raises `ModelFailed` if none will."""
    if worker.status.incarnation > before:
        return True
    _check(resident)
    return None


def _unloaded(resident: Resident, unloads: int) -> bool | None:
    """True once it was unloaded so often; None before. Raises `ModelFailed` if it stays."""
    if resident.unloads >= unloads or _failed(resident):
        return True
    if _stays_loaded(resident):
        raise _stays(resident)
    return None


def _loaded(resident: Resident, loads: int) -> bool | None:
    """True once it was loaded so often; None before. Raises `ModelFailed` if it cannot be, or stays as it is."""
    if resident.loads >= loads:
        return True
    _check(resident)
    if _stays_loaded(resident):
        raise _stays(resident)
    return None


def _stays_loaded(resident: Resident) -> bool:
    return resident.state is ModelState.LOADED and not resident.leaving


def _stays(resident: Resident) -> msg.ModelStays:
    return msg.ModelStays(f"model {resident.name!r} stays loaded: its streams have not ended in time")


def _check(resident: Resident) -> None:
    """Raises `ModelFailed` if it could not be loaded."""
    if _failed(resident):
        raise msg.ModelFailed(f"model {resident.name!r} could not be loaded: {resident.problem}")


def _failed(resident: Resident) -> bool:
    return resident.state is ModelState.FAILED and not resident.asked


def _bytes(ready: Sequence[_LocalWorker], workers: int) -> int:
    """The bytes of that many workers, by what the ready ones report; 0 if that is unknown."""
    reported = [each.status.ready.memory_bytes for each in ready if each.status.ready is not None]
    return max(reported, default=0) * workers
