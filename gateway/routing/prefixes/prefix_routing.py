"""Orders the workers that may get a sequence: by what they hold of its prompt, by load alone, or in turn.

A worker holds the prompts of its sequences, and what ended ones have left in its cache, which it reports. Both are
known by their digests (`protocol.prefix_digests`). All of that is also in its prefix tier, if it has one, for all
workers of its machine. What is expected of a worker follows from measurements: how many of the expected tokens it
really had, and how fast it computes and restores.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.metrics.metrics import Metrics
from gateway.routing.prefixes.choice import LEAST_TOKENS, WorkerOption, choose
from gateway.routing.prefixes.index import PrefixIndex
from gateway.routing.prefixes.pace import DecayedRatio, Pace
from gateway.routing.prefixes.shared_tiers import SharedTiers
from gateway.routing.prefixes.worker_load import MIN_MEASURED, Expected, WorkerLoad
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from gateway.settings import Routing
from protocol.events import HeldPrefix, StartedStream, Usage
from protocol.request import EmbeddedInput, TokensInput

PREFILL_RATE = 1000.0
"""Prompt tokens a second of a model of which nothing was measured yet."""
ANSWER_TOKENS = 64.0
"""Tokens of an answer, likewise."""
RESTORES_PER_PREFILL = 16.0
"""Tokens that a worker restores from its tier in the time in which it computes one, likewise."""
MAX_RESTORE_RATE = 1e6
"""Tokens a second that a restore counts with at most: what is measured of it may be nothing."""
LEAST_PROMISE = 2 * LEAST_TOKENS
"""Expected cached tokens below which what a worker really had is not counted: it recomputes less than `LEAST_TOKENS`,
and the tokens of bytes are estimated."""


@dataclass(slots=True)
class _ModelState:
    """The state of a model and its workers."""

    index: PrefixIndex = field(default_factory=PrefixIndex)
    """Has the digests that slots hold."""
    tiers: SharedTiers = field(default_factory=SharedTiers)
    handles: dict[str, WorkerHandle] = field(default_factory=dict)
    loads: dict[str, WorkerLoad] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    """That of all workers together, for those of which nothing was measured yet."""
    scale: DecayedRatio = field(default_factory=DecayedRatio)
    """Tokens of prompts by what was estimated."""
    trust: DecayedRatio = field(default_factory=DecayedRatio)
    """Tokens that workers had by those that their digests promised: 0 where the template changes the beginning of each
    prompt."""
    stored_trust: DecayedRatio = field(default_factory=DecayedRatio)
    """The same of the promises of tiers: some evict earlier than expected."""
    restore: DecayedRatio = field(default_factory=DecayedRatio)
    """Tokens restored by seconds."""
    answers: DecayedRatio = field(default_factory=DecayedRatio)
    """Tokens of answers by answers."""
    turns: int = 0
    """Sequences that were placed."""


@dataclass(frozen=True, slots=True)
class _Preferred:
    """A worker that was preferred to the least loaded one, and what that one holds."""

    sequence: LiveSequence
    worker: str
    promised_elsewhere: float


class PrefixRouting:
    """Knows what the workers of each model hold. Synchronous; told of every placement, every end and every report."""

    def __init__(self, routing: Routing, metrics: Metrics, pool: WorkerPool) -> None:
        """Only workers that the `pool` prefers equally are chosen from."""
        self._routing = routing
        self._metrics = metrics
        self._pool = pool
        self._models: dict[str, _ModelState] = {}
        self._preferred: _Preferred | None = None
        """The last choice, until its sequence is placed."""

    def add(self, handle: WorkerHandle) -> None:
        """Add a worker."""
        state = self._models.setdefault(handle.model, _ModelState())
        state.handles[handle.name] = handle
        state.loads[handle.name] = WorkerLoad()
        handle.prefix_digests = lambda: state.index.digests(handle.name)
        self.described(handle)

    def described(self, handle: WorkerHandle) -> None:
        """Note the tier of a worker that is ready. Repeatable."""
        ready = handle.status.ready
        if self._routing == "prefix" and ready is not None:
            self._models[handle.model].tiers.join(handle.name, ready.tier)

    def forget(self, handle: WorkerHandle) -> None:
        """Remove a worker. What was measured of its model is forgotten with the last one."""
        state = self._models[handle.model]
        del state.handles[handle.name], state.loads[handle.name]
        state.index.clear(handle.name)
        state.tiers.leave(handle.name)
        if not state.handles:
            del self._models[handle.model]

    def order(
        self, handles: Iterator[WorkerHandle], sequence: LiveSequence, may: Callable[[WorkerHandle], bool]
    ) -> Iterator[WorkerHandle]:
        """Yield the workers that may get a sequence in the order in which they should be asked. They are given in the
        order of `WorkerPool.candidates`; `may` is true for each of them, and for other candidates that may get it."""
        if self._routing == "round-robin":
            preference = self._pool.preference
            every = list(handles)
            loads = self._models[every[0].model].loads if every else {}
            return iter(sorted(every, key=lambda each: (preference(each), loads[each.name].last_turn)))
        return handles if self._routing == "least-loaded" else self._by_prefix(handles, sequence, may)

    def _by_prefix(
        self, handles: Iterator[WorkerHandle], sequence: LiveSequence, may: Callable[[WorkerHandle], bool]
    ) -> Iterator[WorkerHandle]:
        # Of equally loaded ones it holds the fewest prefixes, which are evicted last if they are spread.
        least = next(handles, None)
        if least is None:
            return
        chosen, model = least, least.model
        state = self._models[model]
        held, stored = self._shares(model, sequence), self._stored(model, sequence)
        if held or stored:
            first = self._pool.preference(least)

            def equal(name: str) -> bool:
                handle = state.handles[name]
                return self._pool.admits(handle) and may(handle) and self._pool.preference(handle) == first

            names = [name for name in held if name != least.name and equal(name)]
            for tier in stored:  # the least loaded one that shares it, which may be the least loaded of all
                sharing = state.tiers.workers(tier)
                if least.name not in sharing and (able := [*filter(equal, sharing)]):
                    names.append(min(able, key=lambda name: state.handles[name].load))
            chosen = self._choose([least, *(state.handles[name] for name in dict.fromkeys(names))], sequence)
            if chosen is not least:
                elsewhere = max(self._promises(state, least, sequence))
                self._preferred = _Preferred(sequence, chosen.name, elsewhere)
                yield chosen
        yield least
        yield from (each for each in handles if each is not chosen)

    def _choose(self, handles: list[WorkerHandle], sequence: LiveSequence) -> WorkerHandle:
        """Choose between the least loaded worker, which is the first, and others that hold something."""
        state = self._models[handles[0].model]
        answer = state.answers.value(ANSWER_TOKENS)
        rate, turn_s, row_s = (
            state.pace.prefill.value(PREFILL_RATE),
            state.pace.turn.value(0.0),
            state.pace.row.value(),
        )
        options = []
        for handle in handles:
            load = state.loads[handle.name]
            options.append(
                WorkerOption(
                    live=handle.load,
                    slots=handle.slots,
                    saved=self._saved(state, *self._promises(state, handle, sequence)),
                    pending=load.pending,
                    prefill_rate=load.pace.prefill.value(rate),
                    turn_s=load.pace.turn.value(turn_s),
                    crowding_s=load.pace.row.value(row_s) * answer,
                )
            )
        return handles[choose(options, self._prompt_tokens(state, sequence))]

    def _promises(self, state: _ModelState, handle: WorkerHandle, sequence: LiveSequence) -> tuple[float, float]:
        """Return the tokens of a prompt that a worker holds in its slots, and in its tier, by the digests."""
        prompt = self._prompt_tokens(state, sequence)
        held, stored = self._share(handle, sequence) * prompt, 0.0
        if state.tiers and self._reuses(handle.model, sequence):
            matched = state.tiers.matched(handle.name, sequence.prefix.digests(sequence.submit))
            stored = state.tiers.whole_blocks(handle.name, sequence.prefix.share(matched) * prompt)
        return held, stored

    @staticmethod
    def _saved(state: _ModelState, held: float, stored: float) -> float:
        """Estimate the tokens of a prompt whose time a worker saves. What it restores takes some of that time."""
        saved = state.trust.value(1.0) * held
        if stored:
            rate = state.pace.prefill.value(PREFILL_RATE)
            cost = rate / state.restore.value(RESTORES_PER_PREFILL * rate)
            saved = max(saved, state.stored_trust.value(1.0) * stored * (1.0 - cost))
        return saved

    def uncached(self, sequence: LiveSequence) -> float:
        """Estimate the tokens of a prompt that have to be computed, in those of its `terms`, if the worker gets it that
        holds most of it."""
        model, estimated = sequence.request.model, sequence.terms.prompt_tokens
        if model not in self._models:  # its workers were removed
            return float(estimated)
        state = self._models[model]
        held = state.trust.value(1.0) * max(self._shares(model, sequence).values(), default=0.0)
        stored = state.stored_trust.value(1.0) * max(self._stored(model, sequence).values(), default=0.0)
        return estimated * (1.0 - max(held, stored))

    def uncached_on(self, handle: WorkerHandle, sequence: LiveSequence) -> float:
        """Estimate the tokens that a worker would have to compute of a sequence before the next one. What it restores
        counts by the time that it takes."""
        state = self._models[handle.model]
        saved = self._saved(state, *self._promises(state, handle, sequence))
        return self._prompt_tokens(state, sequence) - saved

    def pending(self, handle: WorkerHandle) -> float:
        """Return the estimated tokens of prompts that a worker has yet to compute."""
        return self._models[handle.model].loads[handle.name].pending

    def prefill_rate(self, model: str) -> float:
        """Return the prompt tokens a second of the workers of a model, as measured."""
        return self._models[model].pace.prefill.value(PREFILL_RATE)

    def placed(self, handle: WorkerHandle, sequence: LiveSequence) -> float:
        """Note that a worker gets a sequence, before its handle does. Returns the share of its prompt that the worker
        is expected to hold."""
        state, number = self._models[handle.model], sequence.submit.stream
        load = state.loads[handle.name]
        state.turns += 1
        load.last_turn = state.turns
        preferred, self._preferred = self._preferred, None
        prompt, (held, stored) = self._prompt_tokens(state, sequence), self._promises(state, handle, sequence)
        promised, elsewhere = max(held, stored), None
        if preferred is not None and preferred.sequence is sequence and preferred.worker == handle.name:
            elsewhere = preferred.promised_elsewhere
        known = isinstance(sequence.submit.input, TokensInput | EmbeddedInput)
        load.place(
            number,
            Expected(
                estimated=0.0 if known else sequence.terms.prompt_tokens,
                resumed=len(sequence.tokens),
                promised=promised,
                promised_elsewhere=promised if elsewhere is None else elsewhere,
                uncached=prompt - self._saved(state, held, stored),
                stored=stored > held,
            ),
        )
        if self._chooses(handle.model):
            state.index.hold(handle.name, _sequence(number), sequence.prefix.digests(sequence.submit))
        self._note_prefixes(handle)
        return state.trust.value(1.0) * held / prompt if held else 0.0

    def left(self, handle: WorkerHandle, sequence: LiveSequence) -> None:
        """Note that a sequence has ended, or that its worker has it no more, before its handle does."""
        state, number = self._models[handle.model], sequence.submit.stream
        state.loads[handle.name].take(number)
        state.index.drop(handle.name, _sequence(number))
        self._note_prefixes(handle)

    def lose(self, handle: WorkerHandle) -> None:
        """Note that a worker holds nothing any more, as its process has ended, before its handle does."""
        state = self._models[handle.model]
        state.loads[handle.name].clear()
        state.index.clear(handle.name)
        self._note_prefixes(handle)

    def report(self, handle: WorkerHandle, prefixes: Sequence[HeldPrefix]) -> None:
        """Take a worker's report of what ended sequences have left."""
        if self._routing == "prefix":
            state = self._models[handle.model]
            for each in prefixes:
                state.index.hold(handle.name, ("slot", each.holder), each.digests)
                state.tiers.saved(handle.name, each.digests, each.tokens)
            if prefixes:  # few steps have any
                self._note_prefixes(handle)
                handle.on_change(handle)

    def started(self, handle: WorkerHandle, event: StartedStream) -> None:
        """Learn from the first token of a sequence."""
        state = self._models[handle.model]
        load = state.loads[handle.name]
        expected = load.take(event.stream)
        if expected is None:
            return
        if event.kept:  # its rows are no prefix for another one, and its pace is not that of whole prompts
            state.index.drop(handle.name, _sequence(event.stream))
            return
        state.tiers.saved(handle.name, state.index.held(handle.name, _sequence(event.stream)), event.prompt_tokens)
        self._measure(state, load, event)
        if expected.estimated:
            state.scale.add(max(0, event.prompt_tokens - expected.resumed), expected.estimated)
        if expected.promised >= LEAST_PROMISE:
            trust = state.stored_trust if expected.stored else state.trust
            short = expected.promised - event.cached_tokens
            trust.add(expected.promised if short < LEAST_TOKENS else event.cached_tokens, expected.promised)
        saved = min(event.cached_tokens, expected.promised) - expected.promised_elsewhere
        if saved > 0:
            self._metrics.prefix_tokens_routed(handle.model).inc(saved)

    @staticmethod
    def _measure(state: _ModelState, load: WorkerLoad, event: StartedStream) -> None:
        """Learn how fast a worker computes a prompt, or what a restore takes beside that."""
        computed, seconds = event.prompt_tokens - event.cached_tokens, event.prefill_us / 1e6
        if event.stored_tokens >= MIN_MEASURED:
            rate = load.pace.prefill.value(state.pace.prefill.value(PREFILL_RATE))
            state.restore.add(
                event.stored_tokens, max(seconds - computed / rate, event.stored_tokens / MAX_RESTORE_RATE)
            )
        elif not event.stored_tokens and computed >= MIN_MEASURED and seconds > 0:
            for pace in (load.pace, state.pace):
                pace.prefill.add(computed, seconds)

    def finished(self, handle: WorkerHandle, sequence: LiveSequence, usage: Usage) -> None:
        """Learn from the end of a sequence that its worker still has."""
        state = self._models[handle.model]
        state.answers.add(usage.completion_tokens, 1)
        for pace in (state.loads[handle.name].pace, state.pace):
            pace.turn.add((usage.prefill_ms + usage.decode_ms) / 1000, 1)
            if usage.completion_tokens > 1 and not sequence.replays:
                pace.row.add(len(handle.live), usage.decode_ms / 1000 / (usage.completion_tokens - 1))

    def _note_prefixes(self, handle: WorkerHandle) -> None:
        """Note the place of a worker among equally loaded ones, which changes with its load or its report."""
        if self._routing == "prefix":
            state = self._models[handle.model]
            handle.prefixes = state.index.holders(handle.name), state.loads[handle.name].last_turn

    def _chooses(self, model: str) -> bool:
        """Digests are needed: there is something to choose."""
        return self._routing == "prefix" and len(self._models[model].loads) > 1

    def _shares(self, model: str, sequence: LiveSequence) -> dict[str, float]:
        """Return the share of a prompt that workers hold, the largest first."""
        if not self._reuses(model, sequence):
            return {}
        matches = self._models[model].index.matches(sequence.prefix.digests(sequence.submit))
        return {worker: sequence.prefix.share(matched) for worker, matched in matches.items()}

    def _stored(self, model: str, sequence: LiveSequence) -> dict[str, float]:
        """Return the share of a prompt that tiers hold, the largest first."""
        tiers = self._models[model].tiers
        if not tiers or not self._reuses(model, sequence):
            return {}
        matches = tiers.matches(sequence.prefix.digests(sequence.submit))
        return {tier: sequence.prefix.share(matched) for tier, matched in matches.items()}

    def _share(self, handle: WorkerHandle, sequence: LiveSequence) -> float:
        """Return the share of a prompt that a worker holds."""
        if not self._reuses(handle.model, sequence):
            return 0.0
        index = self._models[handle.model].index
        return sequence.prefix.share(index.matched(handle.name, sequence.prefix.digests(sequence.submit)))

    def _reuses(self, model: str, sequence: LiveSequence) -> bool:
        """A worker may take rows of others for a sequence. A prompt that is reported is computed anew."""
        reports = sequence.submit.prompt_logprobs is not None and not sequence.tokens
        return self._chooses(model) and not reports

    def _prompt_tokens(self, state: _ModelState, sequence: LiveSequence) -> float:
        known = isinstance(sequence.submit.input, TokensInput | EmbeddedInput)
        scale = 1.0 if known else state.scale.value(1.0)
        return scale * sequence.terms.prompt_tokens + len(sequence.tokens)


def _sequence(number: int) -> Hashable:
    return "sequence", number
