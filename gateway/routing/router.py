"""Admits requests and routes them to workers, whose notices it takes."""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from random import Random

import structlog
from msgspec.structs import replace

from actors.actor import Actor, Terminated
from actors.process.exit_cause import Origin
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerNotice,
    WorkerState,
    WorkerStatus,
)
from actors.supervision.worker_actor import WorkerRef
from actors.transport.rejections import Rejections
from gateway.answer_budget import AnswerBudget
from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import ModelRequired, RefusalCode, RequestError
from gateway.generation.answer_size import check_answer_size, token_bytes
from gateway.generation.prompt_query import PromptQuery
from gateway.generation.request import GenerationRequest, SequenceRequest
from gateway.generation.tenant import tenant_of
from gateway.key_weights import client_name, key_of_client
from gateway.metrics.metrics import Metrics
from gateway.metrics.samples import Observed
from gateway.routing.adapters.loads import AdapterLoads
from gateway.routing.adapters.registry import is_version
from gateway.routing.admission.terms import AdmissionTerms, prompt_tokens
from gateway.routing.admission.time_limits import RequestTimeLimits
from gateway.routing.circuit_breaker import Breaker
from gateway.routing.delivery import Delivery
from gateway.routing.failure import Cause, RequestFailure
from gateway.routing.model_catalog import Activity
from gateway.routing.model_description import ModelDescription, capabilities, describe
from gateway.routing.placement.placement import Placement
from gateway.routing.placement.row_transfers import RowTransfers
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.prefixes.prompt_prefix import PromptPrefix
from gateway.routing.prompt_queries import PromptQueries
from gateway.routing.request_group import TAKE_BYTES, RequestGroup
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import Role, WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from gateway.settings import GatewaySettings
from protocol.commands import Submit, adapted_tenant
from protocol.errors import ErrorCode
from protocol.events import AdapterChanged, Capabilities, Event, Rows, RowsWritten, Tokenized
from protocol.scheduling import PriorityClass, Urgency

DEADLINE_MARGIN_S = 2.0
"""The worker ends a sequence at its deadline. If it does not, the gateway does so this much later."""

LAST_MOVES_S = 3.0
"""Time beyond the grace of a draining worker in which sequences are moved with their cache rows."""
CHECK_MOVES_S = 0.1
"""A pause before it is checked again whether such sequences are left."""

_log = structlog.get_logger("gateway.routing.router")
_CAUSES = {Origin.OUTSIDE: Cause.KILLED, Origin.MISBEHAVED: Cause.MISBEHAVED}
"""Origins of a loss that no request that ran is the cause of."""


class Router(Actor[WorkerNotice | Terminated]):
    """Admits requests, and delivers to each sequence what its worker reports. Synchronous, on one event loop.

    It watches the workers: their notices are its messages. A sequence is released exactly once: at its terminal event,
    when no worker can continue it, or when its client cancels it, whichever comes first.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        class_weight: Callable[[str], float] = lambda _: 1.0,
        class_of: Callable[[str], PriorityClass] = lambda _: "normal",
        chance: Random | None = None,
    ) -> None:
        """`class_weight` returns the weight of a client by its name, where the settings have none, and `class_of` its
        priority class: see `ApiKeys`. `chance` makes the choice among shared workers repeatable."""
        self._class_of = class_of
        self._settings = settings
        self._admitted = 0
        self._draining = False
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self.pool = WorkerPool(self._clock, chance)
        self.rejections = Rejections()
        """Rejections by the links to the workers."""
        self.bodies = BodyBudget(settings.max_total_body_bytes, settings.retry_after_s)
        self.metrics = Metrics(self.pool.samples, self.waiting, lambda: self.rejections.total, settings.metrics_names)
        self.metrics.watch_bodies(lambda: self.bodies.held)
        self.answers = AnswerBudget(settings.max_total_answer_bytes, settings.max_answer_bytes)
        self.metrics.watch_answers(lambda: self.answers.held)
        self._placement = Placement(settings, self.pool, self.metrics, self._fail, class_weight)
        self._transfers = RowTransfers(self.pool, self._placement, self.metrics)
        self._delivery = Delivery(self.pool, self._placement, self._clock, self._fail, self._transfers.begun)
        self.adapters = AdapterLoads(
            self.pool, self._placement.live, self.model_changed, self._fail, self.metrics.forget_adapter
        )
        self.metrics.watch_adapters(self.adapters.samples)
        self._queries = PromptQueries(self.pool, self._placement, self._error, settings.worker_wait_s)

    def add(self, worker: WorkerRef, name: str, model: str, role: Role = Role.ACTIVE) -> None:
        """Let a worker serve a model. Its name is the one in its events. Raises `ValueError` for a name twice."""
        most = self._settings.max_streams_per_worker
        handle = WorkerHandle(worker, name, model, self.metrics, role, most=most)
        self.pool.add(handle)
        self._placement.routing.add(handle)

    def remove(self, worker: str) -> None:
        """Forget a worker that has ended. Raises `ValueError` while it has live sequences, and for an active one that
        may come back."""
        handle = self.pool[worker]
        if handle.live or (handle.role is Role.ACTIVE and handle.status.running):
            raise ValueError(f"worker {worker!r} is in use")
        self.pool.remove(worker)
        self._transfers.lost(handle)
        self._placement.routing.forget(handle)
        self.adapters.lost(handle)
        self.metrics.forget(worker)

    # Requests of clients.

    def open(
        self,
        request: GenerationRequest,
        request_id: str,
        body: HeldBody | None = None,
        key: bytes = b"",
        *,
        checked: bool = True,
        client: str = "",
        fairness_id: str = "",
        limits: RequestTimeLimits | None = None,
    ) -> RequestGroup:
        """Admit all sequences of a request, of a client with this API key, which the server may have `checked`, with
        the name `client` of that key, and with the `fairness_id` of a trusted gateway, within these time limits or
        those of the settings. They wait while no worker has room for them. The `body` counts as often as workers get
        it: once for each sequence of a prompt, or for each sequence if the prompts share it. Raises `RequestError`."""
        request = self.resolved(request)
        model = request.model
        body = body or HeldBody(self.bodies)
        if self._draining:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down")
        if not self.pool.has(model):
            raise self.no_model(model)
        prompts = request.sequences[:: request.output.per_prompt]  # its sequences differ in the seed alone
        if any(self._placement.quarantine.refuses(model, each.input, each.sampling) for each in prompts):
            text = "requests like this one have killed workers, not long ago: it is not tried again"
            raise self._error(ErrorCode.QUARANTINED, text)
        first = request.sequences[0]
        reported = first.echo or first.prompt_logprobs is not None
        # Others pass, and the context takes a look at each worker.
        if not request.output.stream or request.output.kept or reported:
            check_answer_size(request, self.pool.context(model), self._settings.max_answer_bytes)
        self._check_count(request)
        body.grow((request.body_copies - 1) * body.size)
        limits = limits or RequestTimeLimits(self._settings.request_timeout_s, self._settings.max_queue_s)
        group = RequestGroup(request_id, model, request.output, body, len(request.sequences), self._release)
        group.adapter = request.adapter

        adapter = self.on_workers(request.adapter)

        def tenant(salt: str) -> str:
            return adapted_tenant(tenant_of(key, salt, checked=checked, fairness_id=fairness_id), adapter)

        try:
            client = client_name(client, fairness_id)
            made = self._sequences(group, request, tenant, adapter, limits, client)
            sequences = list(itertools.islice(made, self._at_once(request)))
            group.sequences = sequences
            group.begin_later(made, len(request.sequences) - len(sequences), partial(self._admit_later, limits.queue_s))
            refusal = self._placement.admit(model, sequences)
        except BaseException:  # a bug: nothing of it lives, and nothing else would release the body
            body.release()
            raise
        if refusal is not None:
            body.release()
            if refusal is not ErrorCode.OVERLOADED:
                raise self._error(refusal, self.pool.excuse(model))
            full = f"the workers of model {model!r} have all the requests they can hold"
            raise RequestError(refusal, full, retry_after_s=self._placement.charges.retry_after_s(model, client))
        tops = [top for each in request.sequences for top in (each.sampling.logprobs, each.prompt_logprobs)]
        group.room = max(1, TAKE_BYTES // max(map(token_bytes, tops)))
        if group.adapter:
            self.metrics.adapted(model, group.adapter).inc()
        group.answer = self.answers.open(partial(self._give_way_soon, group))
        group.deadline = self._loop.call_later(limits.total_s + DEADLINE_MARGIN_S, self._expire, group, limits.total_s)
        return group

    def _sequences(
        self,
        group: RequestGroup,
        request: GenerationRequest,
        tenant: Callable[[str], str],
        adapter: str,
        limits: RequestTimeLimits,
        client: str,
    ) -> Iterator[LiveSequence]:
        """Make the sequences of a request, one after the other. `tenant` returns that of a `cache_salt`; `adapter` is
        its name on workers."""
        now, per_prompt = self._clock(), request.output.per_prompt
        queue_until = now + limits.queue_s if limits.queue_s else math.inf
        estimated = [prompt_tokens(each.input) for each in request.sequences[::per_prompt]]
        prefixes = [PromptPrefix() for _ in estimated]
        priority_class = self._class_of(key_of_client(client))
        urgency = Urgency.of(priority_class, request.priority)
        for index, each in enumerate(request.sequences):
            yield LiveSequence(
                replace(
                    self._submit(group, each, tenant(each.cache_salt), adapter, limits),
                    priority_class=priority_class,
                    priority=request.priority,
                ),
                index,
                group,
                now=now,
                echo=each.echo,
                terms=AdmissionTerms(client, estimated[index // per_prompt], urgency, queue_until),
                prefix=prefixes[index // per_prompt],
            )

    def _at_once(self, request: GenerationRequest) -> int:
        """Return how many sequences of a request are admitted with it."""
        count = len(request.sequences)
        if not request.at_once or count == 1:
            return count
        most = self._placement.most(request.model)
        return min(count, request.at_once) if most is None else max(1, min(count, request.at_once, most))

    def _admit_later(self, queue_s: float, sequence: LiveSequence) -> None:
        """Admit a sequence of a request in place of one that has ended."""
        if queue_s:
            until = self._clock() + queue_s
            sequence.terms = dataclasses.replace(sequence.terms, queue_until=until)
        self._placement.admit_later(sequence)

    def _check_count(self, request: GenerationRequest) -> None:
        """Refuse more sequences than a worker and the queue can ever hold. Raises `RequestError`."""
        if len(request.sequences) == 1 or request.at_once:
            return  # each worker holds one, and this looks at all
        most = self._placement.most(request.model)
        if most is not None and len(request.sequences) > most:
            field = "n" if request.output.per_prompt > 1 else "prompt"
            text = f"{len(request.sequences)} sequences are more than the {most} that can run or wait here"
            raise request.output.fields.error(ErrorCode.INVALID, text, field)

    async def ask(self, query: PromptQuery, request_id: str) -> Tokenized:
        """Ask any worker of a model about a prompt. Raises `RequestError`."""
        if self._draining:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down")
        if not self.pool.has(model := self.canonical(query.model)):
            raise self.no_model(query.model)
        if model != query.model:
            query = dataclasses.replace(query, model=model)
        return await self._queries.ask(query, request_id)

    async def described(self, model: str) -> None:
        """Wait until the features of a model are known, which loads it. Raises `RequestError` if no worker comes."""
        model = self.canonical(model)
        if self._draining:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down")
        if not self.pool.has(model):
            raise self.no_model(model)
        await self._queries.described(model)
        if self.capabilities(model) is None:
            raise self._error(ErrorCode.UNAVAILABLE, self.pool.excuse(model))

    def _submit(
        self, group: RequestGroup, wanted: SequenceRequest, tenant: str, adapter: str, limits: RequestTimeLimits
    ) -> Submit:
        self._admitted += 1
        return Submit(
            self._admitted,
            group.request_id,
            wanted.input,
            wanted.sampling,
            replace(wanted.limits, deadline_ms=max(1, int(1000 * limits.total_s))),
            tenant=tenant,
            grammar=wanted.grammar,
            unset=wanted.unset,
            prompt_logprobs=wanted.prompt_logprobs,
            pooled=wanted.pooled,
            adapter=adapter,
        )

    def _release(self, group: RequestGroup) -> None:
        """Cancel the live sequences of a request, as its client does not read it any more."""
        if group.deadline is not None:
            group.deadline.cancel()
        for sequence in self._detach(group):
            self._placement.settle(sequence, "cancelled")
            self._observed(sequence).ended("cancelled").inc()
            sequence.cancel()

    def _expire(self, group: RequestGroup, total_s: float) -> None:
        failure = RequestFailure(ErrorCode.DEADLINE, f"not finished within {total_s:g} s")
        for sequence in self._detach(group):
            self._end_badly(sequence, failure)

    def _give_way_soon(self, group: RequestGroup, reason: str, alone: bool) -> None:
        # One of its sequences may be being handled.
        self._loop.call_soon(self._give_way, group, reason, alone)

    def _give_way(self, group: RequestGroup, reason: str, alone: bool) -> None:
        """End a request whose answer takes too much memory. See `gateway.answer_budget.GiveWay`."""
        output, field = group.output, group.output.limit_field
        if output.stream and not output.kept:
            text = f"the output that was not read had to be dropped: {reason}; read it as it comes"
            failure = RequestFailure(ErrorCode.OVERLOADED, text)
        else:
            instead = "" if output.stream else ", or stream the answer"
            text = f"the answer had to be dropped: {reason}; set `{field}` to less{instead}"
            failure = RequestFailure(ErrorCode.INVALID if alone else ErrorCode.OVERLOADED, text, field)
        for sequence in self._detach(group):
            self._end_badly(sequence, failure)
        group.give_way(failure)

    def _detach(self, group: RequestGroup) -> list[LiveSequence]:
        """Remove the live sequences of a request from their workers, or from the queue."""
        sequences = [sequence for sequence in group.sequences if not sequence.ended]
        group.drop_later()
        for sequence in sequences:
            self._placement.exempt_workers(sequence)
        on_workers: dict[str, list[LiveSequence]] = {}
        for sequence in sequences:
            if sequence.worker:
                on_workers.setdefault(sequence.worker, []).append(sequence)
        for worker, held in on_workers.items():
            if (handle := self.pool.find(worker)) is not None:  # or they have lost it, and it is forgotten already
                handle.cancel(held)
        # Waiting ones first, or they would get the workers that the others leave.
        for sequence in sorted(sequences, key=lambda sequence: bool(sequence.worker)):
            self._placement.remove(sequence)
        return sequences

    # Models that are loaded and unloaded.

    def watch_activity(self, stirred: Callable[[], None]) -> None:
        """Set the function that is called when a model has become idle, or when requests begin or cease to wait for one
        that does not serve them. It must do nothing but take note."""
        self._placement.stirred = stirred

    def activity(self, model: str, workers: Container[str]) -> Activity:
        """Count the requests of a model that these of its workers have, and those that no worker has."""
        sequences, queries = self._placement.activity(model, workers), self._queries.activity(model, workers)
        return Activity(sequences.live + queries.live, sequences.waiting + queries.waiting, sequences.last_used)

    def retire(self, workers: Iterable[str]) -> None:
        """Give these workers, which have no sequences, none until their next incarnation."""
        for worker in workers:
            self.pool[worker].close()

    def model_changed(self, model: str) -> None:
        """Let what waits for a model go on, or end, after its entry in the catalog has changed."""
        self._placement.serve(model)
        self._queries.model_changed()

    def canonical(self, name: str) -> str:
        """The own name of the model with this name or alias, or with an adapter of this name; the name itself if there
        is none."""
        return self.pool.parent(name) or self.pool.catalog.canonical(name)

    def resolved(self, request: GenerationRequest) -> GenerationRequest:
        """Return a request with the own name of its model, and with the adapter that it named."""
        if (model := self.canonical(request.model)) == request.model:
            return request
        adapter = "" if self.pool.parent(request.model) is None else request.model
        return dataclasses.replace(request, model=model, adapter=adapter)

    def on_workers(self, adapter: str) -> str:
        """The name on workers of the adapter that requests name so; empty for none."""
        version = self.pool.runtime.version(adapter)
        return adapter if version is None else version.wire

    def adapter_digest(self, model: str, adapter: str) -> str:
        """Return the name of an adapter on workers with a digest that tells its weights from others: of its files if it
        was loaded at run time, and otherwise of the model and all adapters that were loaded with it, as a worker has
        it. Empty for no adapter."""
        if not adapter or is_version(adapter):
            return adapter
        hellos = (handle.status.hello for handle in self.pool.of(model))
        return f"{adapter}@{next((each.model_digest for each in hellos if each is not None), '')}"

    def with_adapters(self, models: Iterable[str]) -> list[str]:
        """Return the names of models, each followed by those of its adapters."""
        return [name for model in models for name in (model, *self.pool.adapters(model))]

    # Notices of workers.

    def handle(self, message: WorkerNotice | Terminated) -> None:
        """Takes effect at once: what is lost goes to other workers before this returns."""
        match message:
            case WorkerEvent(worker, incarnation, event):
                self.worker_event(worker, incarnation, event)
            case WorkerChanged(status):
                self.worker_changed(status)
            case IncarnationLost():
                self.worker_lost(message)
            case GraceEnded(worker, incarnation):
                if incarnation == self.pool[worker].incarnation:
                    self._end_grace(self.pool[worker])
            case Terminated(worker):
                if self.pool.find(worker) is not None:  # its supervision has failed
                    self.migrate(worker)

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """Handle an event of a worker, unless it is of an earlier incarnation."""
        handle = self.pool[worker]
        if incarnation != handle.incarnation:
            return
        if isinstance(event, Tokenized):
            self._queries.answered(event)
        elif isinstance(event, Rows | RowsWritten):
            self._transfers.take(handle, event)
        elif isinstance(event, AdapterChanged):
            self.adapters.take(handle, event)
        else:
            self._delivery.take(handle, event)

    def worker_changed(self, status: WorkerStatus) -> None:
        """A worker started, got on with loading, became ready, or is no longer."""
        handle = self.pool[status.name]
        if status.incarnation != handle.incarnation:
            handle.forget()
            self._queries.lost(handle.name)
            self._transfers.lost(handle)
            self.adapters.lost(handle)
            self._placement.lose(handle, Cause.DIED, f"worker {handle.name} was replaced")
            handle.incarnation = status.incarnation
            handle.breaker = Breaker()
        handle.steps_failed = status.gauges.steps_failed
        handle.refresh(status)
        self._placement.routing.described(handle)
        self.adapters.changed(handle)
        self.pool.promote(handle.model)
        self._placement.serve(handle.model)
        self._queries.model_changed()
        if status.state is WorkerState.DRAINING:
            self._transfers.drain(handle)

    def worker_lost(self, lost: IncarnationLost) -> None:
        """An incarnation is gone; what it held goes on elsewhere."""
        handle = self.pool[lost.worker]
        if lost.incarnation == handle.incarnation:
            if lost.origin is Origin.MISBEHAVED:
                handle.distrust(self._clock())
            cause = _CAUSES.get(lost.origin, Cause.DIED)
            handle.forget()
            self._queries.lost(handle.name)
            self._transfers.lost(handle)
            self.adapters.lost(handle)
            reason = f"worker {lost.worker} was lost: {lost.reason}"
            self._placement.lose(handle, Cause.LEFT if lost.asked else cause, reason)

    def _end_grace(self, handle: WorkerHandle) -> None:
        """Migrate what a draining worker has, when no sequence is moved with its rows any more."""
        self._migrate_left(handle, handle.incarnation, self._loop.time() + LAST_MOVES_S)

    def _migrate_left(self, handle: WorkerHandle, incarnation: int, until: float) -> None:
        if handle.incarnation != incarnation or self.pool.find(handle.name) is not handle:
            return
        if self._transfers.moves(handle) and self._loop.time() < until:
            self._loop.call_later(CHECK_MOVES_S, self._migrate_left, handle, incarnation, until)
        else:
            self.migrate(handle.name)

    def migrate(self, worker: str) -> None:
        """Take every live sequence off a worker, which gets nothing more until its next incarnation. They go on with
        other workers of the model, or wait for one."""
        handle = self.pool[worker]
        self._transfers.lost(handle)
        handle.cancel(list(handle.live.values()))
        self._placement.lose(handle, Cause.MOVED, f"worker {worker} was to be free")

    def _fail(self, sequence: LiveSequence, failure: RequestFailure) -> None:
        self._placement.remove(sequence)
        self._end_badly(sequence, failure)

    def _end_badly(self, sequence: LiveSequence, failure: RequestFailure) -> None:
        names = sequence.request.output.input_fields
        if names and failure.field == "prompt":
            name = names[sequence.index]
            failure = dataclasses.replace(failure, field=name, text=f"`{name}`: {failure.text}")
        self._placement.settle(sequence, str(failure.code))
        self._observed(sequence).ended(str(failure.code)).inc()
        sequence.fail(failure)
        # The request has failed, and its client may be away: do not compute its other sequences until it returns.
        self._loop.call_soon(sequence.request.cancel_nowait)

    def _observed(self, sequence: LiveSequence) -> Observed:
        """The metrics that count its end: those of its request's last worker."""
        handle = self.pool.find(sequence.request.worker)
        return handle.observed if handle is not None else self.metrics.of(sequence.request.model, "", "")

    # Shutdown.

    def drain_nowait(self) -> None:
        """Admit no further requests."""
        self._draining = True

    @property
    def queue(self) -> WaitQueue:
        """The queue of requests, which keeps the shares of clients."""
        return self._placement.queue

    @property
    def is_idle(self) -> bool:
        """No sequence is live: none is on a worker, in the queue, or on its way there."""
        return self._placement.idle.is_set()

    async def idle(self) -> None:
        """Wait until no sequence is live."""
        # One that has ended may have been followed by another of its request before this continues.
        while not self._placement.idle.is_set():
            await self._placement.idle.wait()

    def fail_all(self, text: str) -> None:
        """End all live sequences with an error, thousands of them in several turns of the event loop."""
        ends = self._placement.wait_ends.budget
        # Waiting ones first, or they would get the workers that the others leave.
        for sequence in reversed(self._placement.live()):
            if not ends.has_room(self.fail_all, text):
                return
            ends.spend()
            self._fail(sequence, RequestFailure(ErrorCode.DRAINING, text))

    # State that others read.

    @property
    def draining(self) -> bool:
        return self._draining

    def describe(self, model: str) -> ModelDescription:
        """Describe a model by its own name, or the model of an adapter."""
        return describe(self.pool, self.pool.parent(model) or model, self._clock())

    def capabilities(self, model: str) -> Capabilities | None:
        """The features of a model by its own name, or of an adapter; None before a worker has loaded it."""
        return capabilities(self.pool, self.pool.parent(model) or model)

    def models(self) -> list[str]:
        """Names of the models, in the order in which they were added."""
        return self.pool.models()

    def named_or_only(self, model: str | None) -> str:
        """Return the model that a body names, or the own name of the only one. Raises `ModelRequired` if it names none
        and there are several or none."""
        if model is not None:
            return model
        models = self.models()
        if len(models) != 1:
            raise ModelRequired
        return models[0]

    def no_model(self, name: str, *, field: str = "model", among: Sequence[str] | None = None) -> RequestError:
        """The error for an unknown model, with the names of those that exist, or those `among` which the client may
        choose."""
        known = self.with_adapters(self.models() if among is None else among)
        names = ", ".join(map(repr, dict.fromkeys(known))) or "none"
        text = f"there is no model {name[:128]!r}; available: {names}"
        return RequestError(RefusalCode.MODEL_NOT_FOUND, text, field=field)

    def handles(self) -> Iterator[WorkerHandle]:
        """The workers and what they hold, to be read only."""
        return iter(self.pool)

    def sequences(self) -> list[LiveSequence]:
        """All live sequences, those on workers first; to be read only."""
        return self._placement.live()

    def waiting(self) -> dict[str, int]:
        """Count the sequences that wait for a worker, by model."""
        return {model: self._placement.queue.count(model) for model in self.models()}

    def _error(self, code: ErrorCode, text: str) -> RequestError:
        return RequestError(code, text, retry_after_s=self._settings.retry_after_s)
