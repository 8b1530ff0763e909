"""The state machine of loaded models, against a simulation of their workers and requests."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.models.residency import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    PATIENCE_S,
    Decision,
    HoldModel,
    OfferModel,
    PrepareModel,
    RefuseModel,
    ReleaseModel,
    Residency,
    StartModel,
    StopModel,
)
from gateway.models.terms import ModelTerms, most_workers
from gateway.routing.model_catalog import Activity, ModelState


class World:
    """Workers that start and stop when the test says so, and requests that run on them or wait."""

    def __init__(self, *models: ModelTerms, budget: float = math.inf) -> None:
        self.residency = Residency(models, budget)
        self.now = 100.0
        self.live = {each.name: 0 for each in models}
        self.waiting = {each.name: 0 for each in models}
        self.refused: list[str] = []
        self.preparing: set[str] = set()
        self.over: set[str] = set()
        """Models that were live when workers began to take more than the budget: until their streams have ended."""

    def state(self, model: str) -> ModelState:
        return self.residency[model].state

    def step(self) -> list[Decision]:
        activity = {name: Activity(self.live[name], self.waiting[name]) for name in self.live}
        decisions = self.residency.step(self.now, activity)
        for each in decisions:
            self._carry_out(each)
        self._check_budget()
        return decisions

    def _check_budget(self) -> None:
        """The budget holds; or streams that were live when workers took more have not ended, and models without them
        leave, so that what stays fits. A pinned model stays as it is."""
        residency = self.residency
        if residency.used <= residency.budget:
            self.over.clear()
            return
        assert self.over, "nothing but a report of more bytes exceeds the budget"
        loading = any(each.state is ModelState.LOADING for each in residency)
        pinned = any(each.pins for each in residency)
        stays = [each for each in residency if each.state is ModelState.LOADED and not each.held]
        assert loading or pinned or sum(each.charged for each in stays) <= residency.budget
        for each in residency:
            assert each.name in self.over or not each.held or each.leaving, "one that is held has streams from before"

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case PrepareModel(model):
                assert model not in self.preparing
                self.preparing.add(model)
            case StartModel(model):
                assert model not in self.preparing
                assert self.residency.used <= self.residency.budget, "nothing is loaded into memory that is not there"
            case StopModel(model):
                assert not self.live[model], "a model was unloaded under a live stream"
            case HoldModel():
                pass
            case ReleaseModel(model):
                self._serve(model)
            case RefuseModel(model):
                self.refused += [model] * self.waiting[model]
                self.waiting[model] = 0
            case OfferModel():
                pass

    def _serve(self, model: str) -> None:
        self.live[model] += self.waiting[model]
        self.waiting[model] = 0

    def arrive(self, model: str) -> list[Decision]:
        each = self.residency[model]
        if each.state is ModelState.FAILED and self.now < each.retry_at:
            self.refused.append(model)
        elif each.state is ModelState.LOADED and not each.held:
            self.live[model] += 1
        else:
            self.waiting[model] += 1
        return self.step()

    def finish(self, model: str) -> list[Decision]:
        self.live[model] = max(0, self.live[model] - 1)
        return self.step()

    def leave_queue(self, model: str) -> list[Decision]:
        self.waiting[model] = 0
        return self.step()

    def progress(self, model: str, bytes_: int = 0) -> list[Decision]:
        """Its workers have started, or ended."""
        if model in self.preparing:
            self.preparing.remove(model)
            self.residency.prepared(self.residency[model].terms)
        elif self.state(model) is ModelState.LOADING:
            self.residency.loaded(model, self.now, bytes_)
            if self.residency.used > self.residency.budget:
                self.over |= {name for name in self.live if self.live[name]} | {model}
            if not self.residency[model].held:
                self._serve(model)
        elif self.state(model) is ModelState.UNLOADING:
            self.residency.ended(model)
        return self.step()

    def fail(self, model: str) -> list[Decision]:
        if model in self.preparing:
            self.preparing.remove(model)
            for each in self.residency.failed(model, "no network", self.now):
                self._carry_out(each)
        elif self.state(model) in (ModelState.LOADING, ModelState.LOADED):
            self.waiting[model] += self.live[model]  # the streams wait for another worker
            self.live[model] = 0
            for each in self.residency.failed(model, "it died", self.now):
                self._carry_out(each)
        return self.step()

    def later(self, seconds: float) -> list[Decision]:
        self.now += seconds
        return self.step()

    def load(self, model: str) -> None:
        self.residency.ask(model)
        self.step()
        self.progress(model)
        assert self.state(model) is ModelState.LOADED


def lazy(name: str, bytes_: int = 0, **terms: Any) -> ModelTerms:
    return ModelTerms(name=name, load="first-use", bytes=bytes_, **terms)


class TestLoading:
    def test_models_are_loaded_at_the_start_in_their_order(self) -> None:
        world = World(ModelTerms(name="a"), lazy("b"), ModelTerms(name="c"))
        assert world.step() == [StartModel("a"), StartModel("c")]
        assert world.step() == []

    def test_a_request_loads_its_model(self) -> None:
        world = World(lazy("a"), lazy("b"))
        assert world.step() == []
        assert world.arrive("a") == [StartModel("a")]
        world.progress("a")
        assert world.live == {"a": 1, "b": 0}
        assert world.state("b") is ModelState.UNLOADED

    def test_a_failed_load_refuses_what_waits_and_the_next_attempts_are_further_and_further_apart(self) -> None:
        world = World(lazy("a"))
        delay_s = FIRST_RETRY_S
        for _ in range(10):
            assert world.arrive("a") == [StartModel("a")]
            world.fail("a")
            assert world.refused.pop() == "a"
            assert (world.state("a"), world.residency.due) == (ModelState.FAILED, world.now + delay_s)
            world.arrive("a")
            assert world.refused.pop() == "a", "refused at once meanwhile"
            assert world.later(delay_s) == [OfferModel("a")]
            delay_s = min(2 * delay_s, MAX_RETRY_S)
        world.load("a")
        world.fail("a")
        assert world.residency.due == world.now + FIRST_RETRY_S, "a load that succeeds ends the series"

    def test_an_operator_loads_it_without_waiting_for_the_next_attempt(self) -> None:
        world = World(lazy("a"))
        world.arrive("a")
        world.fail("a")
        world.residency.ask("a")
        assert world.step() == [OfferModel("a"), StartModel("a")]

    def test_a_model_that_never_fits_is_refused(self) -> None:
        world = World(lazy("a", 11), lazy("b", 10), budget=10)
        assert world.arrive("a") == [RefuseModel("a", "it takes 11 bytes, more than memory_budget has, 10")]
        assert world.arrive("b") == [StartModel("b")]


class TestIdle:
    def test_a_model_without_requests_is_unloaded_after_its_time(self) -> None:
        world = World(lazy("a", keep_alive_s=30.0))
        world.arrive("a")
        world.progress("a")
        world.later(1000)
        assert world.state("a") is ModelState.LOADED, "it has a stream"
        world.finish("a")
        assert world.residency.due == world.now + 30
        assert world.later(29.9) == []
        assert world.later(0.1) == [StopModel("a")]
        world.progress("a")
        assert world.state("a") is ModelState.UNLOADED

    def test_a_request_sets_the_time_until_the_model_is_unloaded(self) -> None:
        world = World(lazy("a", keep_alive_s=30.0))
        world.load("a")
        world.residency.keep_alive("a", 0)
        assert world.step() == [StopModel("a")]
        world.progress("a")
        world.load("a")
        assert world.later(29.9) == []

    def test_a_model_that_is_loaded_without_a_request_has_its_time_too(self) -> None:
        world = World(lazy("a", keep_alive_s=30.0))
        world.load("a")
        assert world.later(29.9) == []
        assert world.later(0.1) == [StopModel("a")]

    def test_a_pinned_one_stays(self) -> None:
        world = World(lazy("a", keep_alive_s=30.0), lazy("b", 1), budget=1)
        world.load("a")
        world.residency.pin("a")
        assert world.later(31) == []
        world.residency.leave("a")
        assert world.step() == [HoldModel("a")]
        world.residency.unpin("a")
        assert world.step() == [StopModel("a")]


class TestMemory:
    def test_the_least_recently_used_idle_model_makes_room(self) -> None:
        world = World(lazy("a", 4), lazy("b", 4), lazy("c", 4), budget=8)
        for name in ("a", "b"):
            world.load(name)
            world.later(1)
        world.arrive("a")
        world.later(1)
        world.finish("a")
        assert world.arrive("c") == [StopModel("b")]
        assert world.progress("b") == [StartModel("c")]

    def test_a_lower_priority_goes_first(self) -> None:
        world = World(lazy("a", 4, priority=1), lazy("b", 4), lazy("c", 4), budget=8)
        for name in ("a", "b"):
            world.load(name)
            world.later(1)
        assert world.arrive("c") == [StopModel("b")]

    def test_as_many_as_are_needed_and_no_more(self) -> None:
        world = World(lazy("a", 3), lazy("b", 3), lazy("c", 3), lazy("d", 5), budget=9)
        for name in ("a", "b", "c"):
            world.load(name)
            world.later(1)
        assert world.arrive("d") == [StopModel("a"), StopModel("b")]
        assert world.progress("a") == []
        assert world.progress("b") == [StartModel("d")]

    def test_a_small_model_stays_if_a_large_one_has_to_go_anyway(self) -> None:
        world = World(lazy("small", 1), lazy("a", 8), lazy("b", 8), budget=9)
        world.load("small")
        world.later(1)
        world.load("a")
        assert world.arrive("b") == [StopModel("a")]

    def test_nothing_is_unloaded_while_that_would_not_suffice(self) -> None:
        world = World(lazy("a", 4), lazy("b", 4), lazy("c", 8), budget=8)
        world.load("a")
        world.load("b")
        world.arrive("b")
        assert world.arrive("c") == []
        assert world.finish("b") == [StopModel("a"), StopModel("b")]

    def test_a_busy_model_is_held_after_a_while_finishes_and_gets_its_turn_again(self) -> None:
        world = World(lazy("a", 8), lazy("b", 8), budget=8)
        world.load("a")
        world.arrive("a")
        assert world.arrive("b") == []
        assert world.residency.due == world.now + PATIENCE_S
        assert world.later(PATIENCE_S) == [HoldModel("a")]
        assert world.arrive("a") == [], "it waits"
        assert world.finish("a") == [StopModel("a")]
        assert world.progress("a") == [StartModel("b")]
        world.progress("b")
        assert world.live == {"a": 0, "b": 1}
        assert world.finish("b") == [StopModel("b")], "the one that waits is next"
        assert world.progress("b") == [StartModel("a")]

    def test_a_turn_is_not_shortened_by_the_time_that_the_load_took(self) -> None:
        world = World(lazy("a", 8), lazy("b", 8), budget=8)
        world.load("a")
        world.arrive("a")
        world.arrive("b")
        world.later(PATIENCE_S)
        world.arrive("a")
        world.finish("a")
        world.progress("a")
        world.later(10 * PATIENCE_S)
        assert world.progress("b") == [], "a has waited long, but b is served only now"
        assert world.residency.due == world.now + PATIENCE_S
        assert world.arrive("b") == []
        assert world.live["b"] == 2
        assert world.later(PATIENCE_S) == [HoldModel("b")]

    def test_a_held_model_runs_on_when_nobody_waits_any_more(self) -> None:
        world = World(lazy("a", 8), lazy("b", 8), budget=8)
        world.load("a")
        world.arrive("a")
        world.arrive("b")
        world.later(PATIENCE_S)
        world.arrive("a")
        assert world.leave_queue("b") == [ReleaseModel("a")]
        assert world.live == {"a": 2, "b": 0}

    def test_memory_is_given_in_the_order_in_which_it_was_asked_for(self) -> None:
        world = World(lazy("a", 8), lazy("big", 8), lazy("small", 2), budget=9)
        world.load("a")
        world.arrive("a")
        assert world.arrive("big") == []
        world.later(1)
        assert world.arrive("small") == []
        assert world.finish("a") == [StopModel("a")]
        assert world.progress("a") == [StartModel("big")]

    def test_workers_that_take_more_than_expected_are_counted(self) -> None:
        world = World(lazy("a", 4), lazy("b", 4), lazy("c", 4), budget=8)
        world.load("b")
        world.arrive("a")
        assert world.progress("a", bytes_=6) == [StopModel("b")]
        assert world.progress("b") == []
        assert world.arrive("c") == [], "2 are left"
        assert world.residency["a"].bytes == 6

    def test_bytes_that_an_operator_has_set_hold(self) -> None:
        world = World(ModelTerms(name="a", bytes=4, fixed=True))
        world.step()
        world.progress("a", bytes_=6)
        assert world.residency.used == 4

    def test_extra_workers_need_memory_until_the_pin_ends(self) -> None:
        world = World(lazy("a", 4), lazy("b", 4), budget=8)
        world.load("a")
        world.arrive("a")
        world.residency.pin("a")
        assert not world.residency.reserve("a", 5)
        assert world.residency.reserve("a", 4)
        assert world.arrive("b") == []
        world.residency.unpin("a")
        assert world.step() == [], "one may stay after its operation"
        world.residency.keep_extra("a", 4)
        assert world.step() == []
        world.residency.keep_extra("a", 0)
        assert world.step() == [StartModel("b")]


class TestOperators:
    def test_a_model_leaves_when_its_streams_have_ended_and_a_request_loads_it_again(self) -> None:
        world = World(ModelTerms(name="a"))
        world.load("a")
        world.arrive("a")
        world.residency.leave("a")
        assert world.step() == [HoldModel("a")]
        assert world.arrive("a") == []
        assert world.finish("a") == [StopModel("a")]
        assert world.progress("a") == [StartModel("a")]

    def test_it_stays_when_that_takes_too_long(self) -> None:
        world = World(ModelTerms(name="a"))
        world.load("a")
        world.arrive("a")
        world.residency.leave("a")
        world.residency.ask("a")
        world.step()
        world.residency.stay("a")
        assert world.step() == [ReleaseModel("a")]
        world.finish("a")
        world.residency.leave("a")
        assert world.step() == [StopModel("a")]
        assert world.progress("a") == [], "nobody asks for it any more"

    def test_one_that_loads_is_unloaded_at_once(self) -> None:
        world = World(ModelTerms(name="a"))
        world.step()
        world.residency.leave("a")
        assert world.step() == [StopModel("a")]

    def test_a_reload_is_an_unload_and_a_load(self) -> None:
        world = World(ModelTerms(name="a"))
        world.load("a")
        world.residency.leave("a")
        world.residency.ask("a")
        assert world.step() == [StopModel("a")]
        assert world.progress("a") == [StartModel("a")]


async def prepare() -> ModelTerms:
    raise AssertionError("the loader calls it")


class TestPreparation:
    """A checkpoint that is not on this machine is downloaded when a request needs it."""

    def test_a_request_prepares_its_model_and_loads_it_then_with_what_is_known_by_then(self) -> None:
        world = World(lazy("a", prepare=prepare), lazy("b", 4), budget=8)
        assert world.arrive("a") == [PrepareModel("a")]
        assert world.arrive("a") == []
        assert world.residency["a"].shown is ModelState.DOWNLOADING
        assert world.arrive("b") == [StartModel("b")], "nobody waits behind a download"
        world.progress("b")
        world.finish("b")
        world.preparing.clear()
        world.residency.prepared(lazy("a", 6, prepare=prepare))
        assert world.step() == [StopModel("b")], "it takes memory in its turn"
        assert world.progress("b") == [StartModel("a")]
        world.progress("a")
        assert (world.live["a"], world.residency.used) == (2, 6)

    def test_a_model_without_requests_is_not_prepared(self) -> None:
        world = World(lazy("a", prepare=prepare))
        assert world.step() == []
        world.arrive("a")
        world.leave_queue("a")
        assert world.progress("a") == [], "it is not loaded for nobody"
        assert world.arrive("a") == [StartModel("a")]

    def test_a_failure_refuses_what_waits_and_the_next_attempt_prepares_it_again(self) -> None:
        world = World(lazy("a", prepare=prepare))
        world.arrive("a")
        world.fail("a")
        assert (world.refused, world.residency["a"].problem) == (["a"], "no network")
        assert world.later(FIRST_RETRY_S) == [OfferModel("a")]
        assert world.arrive("a") == [PrepareModel("a")]
        assert world.progress("a") == [StartModel("a")]
        world.fail("a")
        world.later(2 * FIRST_RETRY_S)
        assert world.arrive("a") == [PrepareModel("a")], "its files may be damaged"

    def test_one_that_turns_out_too_large_is_refused(self) -> None:
        world = World(lazy("a", prepare=prepare), budget=5)
        world.arrive("a")
        world.preparing.clear()
        world.residency.prepared(lazy("a", 6, prepare=prepare))
        (refused,) = world.step()
        assert isinstance(refused, RefuseModel)


class TestMoreThanExpected:
    """Workers report more bytes than was estimated."""

    def test_a_busy_model_leaves_when_its_streams_have_ended(self) -> None:
        world = World(lazy("a", 4), lazy("b", 4), budget=8)
        world.load("a")
        world.arrive("a")
        world.arrive("b")
        assert world.progress("b", bytes_=6) == [HoldModel("a")], "not after a while: memory is short now"
        assert world.arrive("a") == []
        assert world.finish("a") == [StopModel("a")]
        assert world.progress("a") == []
        assert world.residency.used == 6

    def test_one_that_alone_takes_more_than_the_budget_leaves_and_is_refused(self) -> None:
        world = World(lazy("a", 4), budget=8)
        world.arrive("a")
        assert world.progress("a", bytes_=9) == [HoldModel("a")]
        world.arrive("a")
        assert world.finish("a") == [StopModel("a")]
        assert world.progress("a") == [RefuseModel("a", "it takes 9 bytes, more than memory_budget has, 8")]
        assert world.refused == ["a"]

    def test_no_more_leave_than_have_to(self) -> None:
        world = World(lazy("a", 4), lazy("b", 2), lazy("c", 2), budget=8)
        for name in "ab":
            world.load(name)
            world.arrive(name)
            world.later(1)
        world.arrive("c")
        assert world.progress("c", bytes_=3) == [HoldModel("a")]
        assert world.live == {"a": 1, "b": 1, "c": 1}


NAMES = ("a", "b", "c", "d")
ACTIONS = (
    "arrive",
    "finish",
    "leave_queue",
    "progress",
    "fail",
    "later",
    "ask",
    "leave",
    "stay",
    "report_more",
    "operate",
)


def operate(world: World, model: str) -> None:
    """Begin an operation on a model, with an extra worker if there is memory, or end it."""
    residency, each = world.residency, world.residency[model]
    if each.pins:
        residency.unpin(model)
        residency.keep_extra(model, 0)
    elif each.state is ModelState.LOADED:
        residency.pin(model)
        residency.reserve(model, each.bytes)
    world.step()


def act(world: World, action: str, model: str) -> None:
    match action:
        case "later":
            world.later(2.0)
        case "ask" | "leave" | "stay":
            getattr(world.residency, action)(model)
            world.step()
        case "report_more":
            world.progress(model, bytes_=world.residency[model].bytes + 1)
        case "operate":
            operate(world, model)
        case _:
            getattr(world, action)(model)


@given(
    st.lists(st.integers(1, 10), min_size=4, max_size=4),
    st.integers(10, 24),
    st.lists(st.sampled_from([0.0, 3.0, math.inf]), min_size=4, max_size=4),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES)), max_size=60),
)
def test_the_budget_holds_no_stream_is_cut_and_no_request_is_forgotten(
    sizes: Sequence[int], budget: int, keep: Sequence[float], actions: Sequence[tuple[str, str]]
) -> None:
    """`World.step` checks the first two after each action. In the end every stream finishes, workers start and stop,
    and operations end: then each model that is wanted has its turn, and no request waits any more."""
    models = [
        lazy(name, size, keep_alive_s=keep_s, priority=size % 2, prepare=prepare if size % 3 == 0 else None)
        for name, size, keep_s in zip(NAMES, sizes, keep, strict=True)
    ]
    world = World(*models, budget=budget)
    for action, model in actions:
        act(world, action, model)
    for each in world.residency:
        if each.pins:
            operate(world, each.name)
    for _ in range(4 * len(NAMES)):
        for name in NAMES:
            world.progress(name)
        for name in NAMES:
            world.live[name] = 0
        world.later(PATIENCE_S)
        if not any(world.waiting.values()):
            break
    assert not any(world.waiting.values()), "a request was forgotten"
    assert all(each.held == (each.state is ModelState.LOADED and each.leaving) for each in world.residency)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        Residency([ModelTerms(name="a"), ModelTerms(name="a")])


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), max_size=5),
    st.integers(0, 40),
)
def test_no_set_of_models_within_the_budget_has_more_workers(models: list[tuple[int, int]], budget: int) -> None:
    sets = itertools.chain.from_iterable(itertools.combinations(models, size) for size in range(len(models) + 1))
    most = max(sum(workers for workers, _ in each) for each in sets if sum(needed for _, needed in each) <= budget)
    assert most <= most_workers(models, budget) <= sum(workers for workers, _ in models)
