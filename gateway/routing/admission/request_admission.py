"""Admits requests of clients: checks them, makes their sequences, and places these or lets them wait."""

import asyncio
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from gateway.answer_budget import AnswerBudget
from gateway.body_budget import BodyBudget, HeldBody
from gateway.errors import RequestError
from gateway.generation.answer_size import check_answer_size, token_bytes
from gateway.generation.prompt_query import PromptQuery
from gateway.generation.request import GenerationRequest, SequenceRequest
from gateway.generation.tenant import tenant_of
from gateway.key_weights import client_name, key_of_client
from gateway.metrics.metrics import Metrics
from gateway.routing.admission.terms import AdmissionTerms, prompt_tokens
from gateway.routing.admission.time_limits import RequestTimeLimits
from gateway.routing.named_models import NamedModels
from gateway.routing.placement.placement import Placement
from gateway.routing.placement.request_ends import RequestEnds
from gateway.routing.prefixes.prompt_prefix import PromptPrefix
from gateway.routing.prompt_queries import PromptQueries
from gateway.routing.request_group import TAKE_BYTES, RequestGroup
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_pool import WorkerPool
from gateway.settings import GatewaySettings
from protocol.commands import Submit, adapted_tenant
from protocol.errors import ErrorCode
from protocol.events import Tokenized
from protocol.scheduling import PriorityClass, Urgency

DEADLINE_MARGIN_S = 2.0
"""The worker ends a sequence at its deadline. If it does not, the gateway does so this much later."""


class RequestAdmission:
    """Admits requests, and questions about prompts, until the gateway drains. Used on the event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        pool: WorkerPool,
        models: NamedModels,
        placement: Placement,
        ends: RequestEnds,
        queries: PromptQueries,
        metrics: Metrics,
        bodies: BodyBudget,
        answers: AnswerBudget,
        class_of: Callable[[str], PriorityClass],
        error: Callable[[ErrorCode, str], RequestError],
    ) -> None:
        """`class_of` returns the priority class of a client's key by its name."""
        self.draining = False
        """No further requests are admitted."""
        self._settings = settings
        self._pool = pool
        self._models = models
        self._placement = placement
        self._ends = ends
        self._queries = queries
        self._metrics = metrics
        self._bodies = bodies
        self._answers = answers
        self._class_of = class_of
        self._error = error
        self._admitted = 0
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time

    def drain_nowait(self) -> None:
        """Admit no further requests."""
        self.draining = True

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
        request = self._models.resolved(request)
        model = request.model
        body = body or HeldBody(self._bodies)
        self._check_served(model, model)
        self._check(request)
        body.grow((request.body_copies - 1) * body.size)
        limits = limits or RequestTimeLimits(self._settings.request_timeout_s, self._settings.max_queue_s)
        group = RequestGroup(request_id, model, request.output, body, len(request.sequences), self._ends.release)
        group.adapter = request.adapter
        adapter = self._models.on_workers(request.adapter)

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
            raise self._refused(refusal, model, client)
        tops = [top for each in request.sequences for top in (each.sampling.logprobs, each.prompt_logprobs)]
        group.room = max(1, TAKE_BYTES // max(map(token_bytes, tops)))
        if group.adapter:
            self._metrics.adapted(model, group.adapter).inc()
        group.answer = self._answers.open(partial(self._ends.give_way_soon, group))
        late_s = limits.total_s + DEADLINE_MARGIN_S
        group.deadline = self._loop.call_later(late_s, self._ends.expire, group, limits.total_s)
        return group

    def _check_served(self, model: str, name: str) -> None:
        """Refuse what is for no model that workers serve, which the client has called `name`. Raises `RequestError`."""
        if self.draining:
            raise self._error(ErrorCode.DRAINING, "the gateway is shutting down")
        if not self._pool.has(model):
            raise self._models.no_model(name)

    def _check(self, request: GenerationRequest) -> None:
        """Refuse what has killed workers, and what could not be answered in full. Raises `RequestError`."""
        model = request.model
        prompts = request.sequences[:: request.output.per_prompt]  # its sequences differ in the seed alone
        if any(self._placement.quarantine.refuses(model, each.input, each.sampling) for each in prompts):
            text = "requests like this one have killed workers, not long ago: it is not tried again"
            raise self._error(ErrorCode.QUARANTINED, text)
        first = request.sequences[0]
        reported = first.echo or first.prompt_logprobs is not None
        # Others pass, and the context takes a look at each worker.
        if not request.output.stream or request.output.kept or reported:
            check_answer_size(request, self._pool.context(model), self._settings.max_answer_bytes)
        self._check_count(request)

    def _refused(self, refusal: ErrorCode, model: str, client: str) -> RequestError:
        """The error for a request that can neither run nor wait."""
        if refusal is not ErrorCode.OVERLOADED:
            return self._error(refusal, self._pool.excuse(model))
        full = f"the workers of model {model!r} have all the requests they can hold"
        return RequestError(refusal, full, retry_after_s=self._placement.charges.retry_after_s(model, client))

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
        model = self._models.canonical(query.model)
        self._check_served(model, query.model)
        if model != query.model:
            query = dataclasses.replace(query, model=model)
        return await self._queries.ask(query, request_id)

    async def described(self, model: str) -> None:
        """Wait until the features of a model are known, which loads it. Raises `RequestError` if no worker comes."""
        model = self._models.canonical(model)
        self._check_served(model, model)
        await self._queries.described(model)
        if self._models.capabilities(model) is None:
            raise self._error(ErrorCode.UNAVAILABLE, self._pool.excuse(model))

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
