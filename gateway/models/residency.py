"""Decides which models are loaded: a state machine. Facts and times in, decisions out; no I/O and no clock."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.models.terms import ModelTerms
from gateway.routing.model_catalog import Activity, ModelState

PATIENCE_S = 5.0
"""Time that a model waits for memory before the models that have it get no new requests. It is also the least time that
a busy model is served before another one takes its place."""
FIRST_RETRY_S = 5.0
MAX_RETRY_S = 300.0
"""Bounds of the time after a failed load, which doubles with each further failure, in which requests are refused."""


@dataclass(frozen=True, slots=True)
class PrepareModel:
    """Make the checkpoint of a model available. It takes no memory before it is loaded."""

    model: str


@dataclass(frozen=True, slots=True)
class StartModel:
    """Start the workers of a model."""

    model: str


@dataclass(frozen=True, slots=True)
class StopModel:
    """Stop the workers of a model, none of which has a stream."""

    model: str


@dataclass(frozen=True, slots=True)
class HoldModel:
    """Let new requests of a loaded model wait."""

    model: str


@dataclass(frozen=True, slots=True)
class ReleaseModel:
    """Let those requests run."""

    model: str


@dataclass(frozen=True, slots=True)
class RefuseModel:
    """Refuse the requests of a model: it could not be loaded."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class OfferModel:
    """Take requests of the model again: one makes another attempt."""

    model: str


Decision = PrepareModel | StartModel | StopModel | HoldModel | ReleaseModel | RefuseModel | OfferModel


@dataclass(slots=True, eq=False)
class Resident:
    """One model as it is now. Changed by `Residency` alone."""

    terms: ModelTerms
    bytes: int
    """Memory that it takes when it is loaded."""
    last_used: float
    keep_alive_s: float
    state: ModelState = ModelState.UNLOADED
    prepared: bool = True
    """It can be loaded as it is."""
    preparing: bool = False
    asked: bool = False
    """To be loaded without a request."""
    wanted_since: float | None = None
    """Since when it waits to be loaded."""
    served_since: float = -math.inf
    """Time at which it was loaded last."""
    leaving: bool = False
    """An operator or a client unloads it: when its streams have ended."""
    held: bool = False
    """Its new requests wait."""
    pins: int = 0
    """Operations on its workers; it is not unloaded meanwhile."""
    extra: int = 0
    """Bytes of further workers of these operations."""
    loads: int = 0
    """Times that it was loaded."""
    unloads: int = 0
    """Times that nothing was left of it."""
    failures: int = 0
    retry_at: float = math.inf
    problem: str = ""

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def charged(self) -> int:
        """The bytes that count against the budget now."""
        holds = self.state in (ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADING)
        return self.bytes + self.extra if holds else 0

    @property
    def shown(self) -> ModelState:
        """Its state for others."""
        downloads = self.preparing and self.state is ModelState.UNLOADED
        return ModelState.DOWNLOADING if downloads else self.state


class Residency:
    """Owns the state of each model, and the order in which models get memory.

    A model is loaded when a request waits for it or somebody asks for it, in the order in which that came about: one
    that waits for memory holds up those behind it. Memory is taken first from models without requests: of the lowest
    priority, the one first that was not used for the longest time. After `PATIENCE_S` busy models are held as well:
    what they have begun is finished, and their new requests wait for their own turn to be loaded. A model is unloaded
    only when none of its streams is live.

    The budget is exceeded in one case: workers report more than was expected of them. Then models have to leave at
    once, busy ones as soon as their streams end, until the rest fits; none is loaded meanwhile. A model that alone
    takes more than the budget leaves, too, and is refused from then on.
    """

    def __init__(
        self, models: Sequence[ModelTerms], budget: float = math.inf, *, patience_s: float = PATIENCE_S
    ) -> None:
        """`budget` in bytes. Raises `ValueError` for a name twice."""
        self._residents = {each.name: Resident(each, each.bytes, 0.0, each.keep_alive_s) for each in models}
        if len(self._residents) < len(models):
            raise ValueError("two models have one name")
        self.budget = budget
        self.patience_s = patience_s
        self._out: list[Decision] = []
        self.due = math.inf
        """The time at which `step` has something to do, if nothing changes before."""
        for each in self._residents.values():
            each.asked = each.terms.load == "start"
            each.prepared = each.terms.prepare is None

    def __getitem__(self, model: str) -> Resident:
        return self._residents[model]

    def __contains__(self, model: str) -> bool:
        return model in self._residents

    def __iter__(self) -> Iterator[Resident]:
        return iter(self._residents.values())

    @property
    def used(self) -> int:
        """The bytes of the models that are loaded, or not unloaded yet."""
        return sum(each.charged for each in self._residents.values())

    # Requests of operators and clients.

    def ask(self, model: str) -> None:
        """Load it, also after a failure. One that is leaving is loaded again."""
        each = self._residents[model]
        each.asked = each.state is not ModelState.LOADED or each.leaving
        if each.state is ModelState.FAILED:
            each.retry_at = -math.inf

    def leave(self, model: str) -> None:
        """Unload it when its streams have ended; new requests wait, and load it again."""
        each = self._residents[model]
        if each.state in (ModelState.LOADING, ModelState.LOADED):
            each.leaving = True
        each.asked = False

    def stay(self, model: str) -> None:
        """Take that back, if it is still loaded."""
        each = self._residents[model]
        if each.leaving:
            each.leaving = each.asked = False

    def keep_alive(self, model: str, seconds: float) -> None:
        """Let it stay so long without a request, until it is unloaded."""
        self._residents[model].keep_alive_s = seconds

    def pin(self, model: str) -> None:
        """Keep it as it is, until `unpin`."""
        self._residents[model].pins += 1

    def unpin(self, model: str) -> None:
        """End a `pin`."""
        self._residents[model].pins -= 1

    def reserve(self, model: str, bytes_: int) -> bool:
        """Take memory for a further worker of a pinned model. False if it is not free."""
        if bytes_ > self.budget - self.used:
            return False
        self._residents[model].extra += bytes_
        return True

    def keep_extra(self, model: str, bytes_: int) -> None:
        """Return the memory of further workers, but for that of those that are left."""
        each = self._residents[model]
        each.extra = min(each.extra, bytes_)

    # Facts about its checkpoint and its workers.

    def prepared(self, terms: ModelTerms) -> None:
        """It can be loaded, on these terms."""
        each = self._residents[terms.name]
        each.terms, each.prepared, each.preparing = terms, True, False
        if each.charged == 0:
            each.bytes = terms.bytes

    def loaded(self, model: str, now: float, bytes_: int = 0) -> None:
        """A worker of it is ready; together they take so many bytes, unless that is 0."""
        each = self._residents[model]
        if bytes_ and not each.terms.fixed:
            each.bytes = bytes_
        if each.state is ModelState.LOADING:
            each.state, each.last_used, each.failures = ModelState.LOADED, now, 0
            each.served_since = now
            each.loads += 1
            each.asked = each.leaving and each.asked

    def ended(self, model: str) -> None:
        """Nothing is left of its workers, which were to be unloaded."""
        each = self._residents[model]
        if each.state is ModelState.UNLOADING:
            each.state = ModelState.UNLOADED
            each.unloads += 1

    def failed(self, model: str, reason: str, now: float, *, retries: bool = True) -> list[Decision]:
        """It could not be prepared, or no worker of it runs any more, and none will by itself. Unless it `retries`,
        only `ask` leads to another attempt."""
        each = self._residents[model]
        each.preparing, each.prepared = False, each.terms.prepare is None
        self._out = []
        self._fail(each, reason, now)
        if not retries:
            each.retry_at = math.inf
        return self._out

    def _fail(self, each: Resident, reason: str, now: float) -> None:
        delay_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(each.failures, 16))
        each.state, each.problem = ModelState.FAILED, reason
        each.asked = each.leaving = each.held = False
        each.wanted_since = None
        each.failures += 1
        each.retry_at = now + delay_s
        self._out.append(RefuseModel(each.name, reason))

    # Decisions.

    def step(self, now: float, activity: Mapping[str, Activity]) -> list[Decision]:
        """Decide what follows from the facts so far, at this time and with these requests."""
        self._out, self.due = [], math.inf
        for each in self._residents.values():
            self._observe(each, activity[each.name], now)
        held = {each for each in self._residents.values() if each.leaving}
        self._unload_unused(activity, now)
        held |= self._shrink(activity)
        self._prepare()
        held |= self._load_in_order(activity, now)
        for each in self._residents.values():
            if each.state is ModelState.LOADED and (each in held) != each.held:
                each.held = not each.held
                self._out.append((HoldModel if each.held else ReleaseModel)(each.name))
        return self._out

    def _observe(self, each: Resident, activity: Activity, now: float) -> None:
        if each.state is ModelState.FAILED:
            if now < each.retry_at:
                self._wake(each.retry_at)
                return
            each.state, each.retry_at, each.problem = ModelState.UNLOADED, math.inf, ""
            self._out.append(OfferModel(each.name))
        each.last_used = now if activity.busy else max(each.last_used, activity.last_used)
        absent = each.state in (ModelState.UNLOADED, ModelState.UNLOADING)
        if absent and (activity.busy or each.asked):
            each.wanted_since = now if each.wanted_since is None else each.wanted_since
        else:
            each.wanted_since = None

    def _unload_unused(self, activity: Mapping[str, Activity], now: float) -> None:
        for each in self._residents.values():
            if each.leaving and each.state is ModelState.LOADING and not each.pins:
                self._unload(each)
            elif each.state is not ModelState.LOADED or each.pins:
                continue
            elif each.leaving:
                if not activity[each.name].live:
                    self._unload(each)
            elif not activity[each.name].busy:
                expires = each.last_used + each.keep_alive_s
                if now >= expires:
                    self._unload(each)
                else:
                    self._wake(expires)

    def _shrink(self, activity: Mapping[str, Activity]) -> set[Resident]:
        """Unload models if workers take more than was expected: those without requests first. Returns the models that
        have to leave when their streams have ended."""
        held = set()
        excess = self.used - self.budget - self._leaving_bytes()
        for each in (*self._by_worth(activity, busy=False), *self._by_worth(activity, busy=True)):
            if excess <= 0:
                break
            if each.state is not ModelState.LOADED:
                continue  # it was among those without requests
            excess -= each.charged
            if activity[each.name].live:
                held.add(each)
            else:
                self._unload(each)
        return held

    def _prepare(self) -> None:
        for each in self._residents.values():
            wanted = each.state is ModelState.UNLOADED and each.wanted_since is not None
            if wanted and not each.prepared and not each.preparing:
                each.preparing = True
                self._out.append(PrepareModel(each.name))

    def _load_in_order(self, activity: Mapping[str, Activity], now: float) -> set[Resident]:
        """Load those that wait, as far as there is memory. Returns the models that have to make room."""
        residents = self._residents.values()
        absent = [each for each in residents if each.state is ModelState.UNLOADED and each.prepared]
        line = [(each.wanted_since, place, each) for place, each in enumerate(absent) if each.wanted_since is not None]
        for _, _, each in sorted(line):
            if each.bytes > self.budget:
                self._fail(each, f"it takes {each.bytes} bytes, more than memory_budget has, {self.budget:.0f}", now)
                self._wake(each.retry_at)
                continue
            missing = each.bytes - (self.budget - self.used)
            if missing > 0:
                return self._make_room(each, missing - self._leaving_bytes(), activity, now)
            each.state, each.wanted_since = ModelState.LOADING, None
            self._out.append(StartModel(each.name))
        return set()

    def _make_room(self, for_: Resident, missing: float, activity: Mapping[str, Activity], now: float) -> set[Resident]:
        if missing <= 0:
            return set()  # it is about to be free
        if (idle := _enough(self._by_worth(activity, busy=False), missing)) is not None:
            for each in idle:
                self._unload(each)
            return set()
        assert for_.wanted_since is not None
        if now < for_.wanted_since + self.patience_s:
            self._wake(for_.wanted_since + self.patience_s)
            return set()
        chosen = _enough(self._by_worth(activity, busy=True), missing)
        if chosen is None:
            return set()
        turns_end = max(each.served_since + self.patience_s for each in chosen if activity[each.name].busy)
        if now < turns_end:
            self._wake(turns_end)
            return set()
        if any(activity[each.name].live for each in chosen):
            return set(chosen)
        for each in chosen:
            self._unload(each)
        return set()

    def _by_worth(self, activity: Mapping[str, Activity], *, busy: bool) -> list[Resident]:
        """The models that may be unloaded, the first one first; with those that have requests, if `busy`."""
        able = [
            each
            for each in self._residents.values()
            if each.state is ModelState.LOADED and not each.pins and (busy or not activity[each.name].busy)
        ]
        # Those that are held stay the chosen ones, whatever waits for them meanwhile.
        return sorted(able, key=lambda each: (not each.held, each.terms.priority, each.last_used))

    def _unload(self, each: Resident) -> None:
        each.state, each.keep_alive_s = ModelState.UNLOADING, each.terms.keep_alive_s
        each.leaving = each.held = False
        self._out.append(StopModel(each.name))

    def _leaving_bytes(self) -> int:
        """The bytes that are about to become free."""
        return sum(each.charged for each in self._residents.values() if each.state is ModelState.UNLOADING)

    def _wake(self, at: float) -> None:
        self.due = min(self.due, at)


def _enough(candidates: Sequence[Resident], missing: float) -> list[Resident] | None:
    """The first ones that have so many bytes together, without those that the others make unnecessary; None if all have
    less."""
    chosen: list[Resident] = []
    for each in candidates:
        if missing <= 0:
            break
        chosen.append(each)
        missing -= each.charged
    if missing > 0:
        return None
    for each in reversed(chosen.copy()):
        if missing + each.charged <= 0:
            chosen.remove(each)
            missing += each.charged
    return chosen
