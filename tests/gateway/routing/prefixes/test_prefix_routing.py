"""Routing by prefix over workers whose engines the test steps."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from gateway.openai.decoding import RequestDecoder
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from protocol.events import StartedStream
from tests.gateway.harness.engines import EngineWorker
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.tier.prefix_tier import PrefixTier
from workers.prefix_store.store import PrefixStore
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner

pytestmark = pytest.mark.anyio

SYSTEM = "You answer questions about ships and the sea, in full sentences, and never about anything else. " * 8
NAMES = ("a", "b", "c")


class PacedRunner(ScriptedRunner):
    """Advances a clock by what a device would take: a millisecond for a prompt token, and for a step."""

    def __init__(self, slots: int, time: list[float]) -> None:
        super().__init__(slots=slots)
        self._time = time

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self._time[0] += 0.001 * sum(len(chunk.tokens) for chunk in chunks)
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self._time[0] += 0.001
        return super().decode(rows)


class Fleet:
    """A router over engines, with what workers computed."""

    def __init__(self, *names: str, slots: int = 4, empty: bool = False, **settings: Any) -> None:
        chosen = GatewaySettings(**settings)
        self.router = Router(chosen)
        self.decoder = RequestDecoder(chosen)
        self.workers: dict[str, EngineWorker] = {}
        for name in () if empty else names or NAMES:
            self.add(name, slots)

    def add(self, name: str, slots: int = 4) -> EngineWorker:
        time = [0.0]
        worker = EngineWorker(name, slots=slots, runner=lambda: PacedRunner(slots, time), clock=lambda: time[0])
        self.workers[name] = worker
        worker.join(self.router)
        return worker

    def tiered(self, name: str, path: Path, slots: int = 4, store: int = 1 << 20) -> EngineWorker:
        """Add a worker with a prefix tier in this directory."""
        time = [0.0]
        worker = EngineWorker(
            name,
            slots=slots,
            runner=lambda: PacedRunner(slots, time),
            clock=lambda: time[0],
            tier=lambda runner: PrefixTier(PrefixStore(path, store), runner),
        )
        self.workers[name] = worker
        worker.join(self.router)
        return worker

    def close(self) -> None:
        for worker in self.workers.values():
            worker.engine.close()

    def open(self, prompt: str | list[int], *, key: str = "", max_tokens: int = 8, **fields: Any) -> RequestGroup:
        body = {"model": "tiny", "prompt": prompt, "stream": True, "max_tokens": max_tokens, "ignore_eos": True}
        request = self.decoder.completion(json.dumps(body | fields).encode()).request
        return self.router.admission.open(request, "r", key=key.encode(), client=key)

    def chat(self, *contents: str, **fields: Any) -> RequestGroup:
        roles = ("system", "user", "assistant")
        messages = [
            {"role": roles[min(at, 1) if at < 2 else 1 + (at + 1) % 2], "content": text}
            for at, text in enumerate(contents)
        ]
        body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": 40}
        return self.router.admission.open(self.decoder.chat(json.dumps(body | fields).encode()).request, "r")

    def run(self) -> None:
        while any(not worker.idle for worker in self.workers.values()):
            for worker in self.workers.values():
                worker.step()

    def until_first_tokens(self, *groups: RequestGroup) -> None:
        """Step until each of these has a token, of all workers."""
        while not all(sequence.tokens for group in groups for sequence in group.sequences):
            for worker in self.workers.values():
                worker.step()

    def busy(self, worker: str) -> RequestGroup:
        """Let a worker have one more sequence, which does not end in this test, and whose prompt is computed."""
        others: list[RequestGroup] = []
        while worker_of(group := self.open(f"{worker}{len(others)}", max_tokens=3000)) != worker:
            others.append(group)
        for each in others:
            each.cancel_nowait()
        self.until_first_tokens(group)
        return group

    def computed(self) -> int:
        return sum(worker.engine.gauges().prefill_tokens for worker in self.workers.values())

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(each.value for each in samples if labels.items() <= each.labels.items())


def worker_of(group: RequestGroup) -> str:
    return group.worker


async def test_a_shared_prefix_goes_to_the_worker_that_has_it_and_free_slots() -> None:
    fleet = Fleet()
    fleet.busy("a")
    warm = fleet.open(SYSTEM + "What is a keel?")
    assert worker_of(warm) == "b"
    fleet.until_first_tokens(warm)
    assert worker_of(fleet.open(SYSTEM + "And a mast?")) == "b", "while the first one runs"
    while not warm.ended:
        fleet.workers["b"].step()
    again = fleet.open(SYSTEM + "What of a sail?")
    assert worker_of(again) == "b"
    while not again.ended:
        fleet.workers["b"].step()
    assert again.sequences[0].usage is not None
    assert again.sequences[0].usage.cached_tokens >= len(SYSTEM)
    assert fleet.metric("baton_prefix_routed_tokens_total", model="tiny") >= 0.8 * len(SYSTEM)


@pytest.mark.parametrize("routing", ["least-loaded", "prefix"])
async def test_turns_of_a_chat_stay_together(routing: str) -> None:
    fleet = Fleet(routing=routing)
    workers = []
    talk = ["Be brief.", "Tell me of ships. " * 10]
    fleet.busy("a")
    for turn, busy in enumerate(["b", "c", "a"]):
        group = fleet.chat(*talk)
        workers.append(worker_of(group))
        while not group.ended:
            for worker in fleet.workers.values():
                worker.step()
        answer = "".join(getattr(delta, "text", "") for delta in group.take())
        assert answer
        talk += [answer, f"Go on, part {turn}, please."]
        fleet.busy(busy)  # the load changes between the turns
    assert workers == (["b", "b", "b"] if routing == "prefix" else ["b", "c", "a"])


async def test_the_answer_of_a_short_prompt_is_recognized() -> None:
    fleet = Fleet("a", "b")
    fleet.busy("a")
    group = fleet.open("Hi", max_tokens=400)
    while not group.ended:
        fleet.workers["b"].step()
    text = "".join(getattr(delta, "text", "") for delta in group.take())
    fleet.busy("b")
    assert worker_of(fleet.open(f"Hi{text} and so on", max_tokens=1)) == "b"


@pytest.mark.parametrize(
    ("key", "salt", "worker"),
    [("mine", "", "b"), ("theirs", "", "a"), ("mine", "s", "a"), ("", "", "a")],
    ids=["own", "other key", "other salt", "no key"],
)
async def test_what_a_tenant_has_sent_is_of_no_use_to_others(key: str, salt: str, worker: str) -> None:
    fleet = Fleet("a", "b")
    fleet.busy("a")
    mine = fleet.open(SYSTEM, key="mine")
    while not mine.ended:
        fleet.workers["b"].step()
    fleet.busy("b")
    assert worker_of(fleet.open(SYSTEM, key=key, cache_salt=salt or None)) == worker


async def test_no_worker_becomes_a_hot_spot() -> None:
    """All requests have the prefix that one worker holds; they are spread over all of them all the same."""
    fleet = Fleet(slots=8)
    fleet.open(SYSTEM)
    fleet.run()
    groups = [fleet.open(SYSTEM + str(n), max_tokens=50) for n in range(12)]
    live = [len(handle.live) for handle in fleet.router.pool]
    assert sum(live) == len(groups)
    assert max(live) - min(live) <= 5
    fleet.run()
    assert all(each.ended for each in groups)
    before = fleet.computed()
    fleet.open(SYSTEM + "once more")
    fleet.run()
    assert fleet.computed() - before < 100, "each of the workers has the prefix by now"


async def test_unlike_prompts_are_spread_so_that_they_are_evicted_late() -> None:
    fleet = Fleet()
    chosen = []
    for n in range(6):
        group = fleet.open(f"{n}" * 300)
        chosen.append(worker_of(group))
        fleet.run()
    assert chosen == [*NAMES, *NAMES]


async def test_a_worker_that_died_holds_nothing() -> None:
    fleet = Fleet("a", "b")
    fleet.open(SYSTEM)
    fleet.run()
    assert fleet.metric("baton_prefix_digests", worker="a") > 0
    fleet.workers["a"].die()
    assert fleet.metric("baton_prefix_digests", worker="a") == 0
    fleet.workers["a"].come_back()
    assert fleet.metric("baton_prefix_digests", worker="a") == 0
    fleet.busy("a")
    assert worker_of(fleet.open(SYSTEM)) == "b"


async def test_a_restart_without_a_word_clears_as_well() -> None:
    fleet = Fleet("a", "b")
    fleet.open(SYSTEM)
    fleet.run()
    fleet.workers["a"].restart()
    assert fleet.metric("baton_prefix_digests", worker="a") == 0


async def test_what_is_evicted_is_held_no_more() -> None:
    fleet = Fleet("a", "b", slots=2)
    group = fleet.open(SYSTEM, max_tokens=1)
    digests = group.sequences[0].prefix._digests
    fleet.run()
    index = fleet.router._placement.routing._models["tiny"].index
    assert digests is not None
    assert index.matches(digests) == {"a": len(digests)}
    for n in range(8):
        fleet.open(f"{n}" * 200, max_tokens=100)
    fleet.run()
    assert index.matches(digests) == {}
    assert index.digests("a")


@pytest.mark.parametrize(("routing", "worker"), [("prefix", "b"), ("least-loaded", "a")])
async def test_a_replayed_stream_prefers_the_worker_that_has_its_prefix(routing: str, worker: str) -> None:
    fleet = Fleet("a", "b", slots=8, routing=routing)
    fleet.busy("a")
    warm = fleet.open(SYSTEM + "one", max_tokens=3000)
    assert worker_of(warm) == "b"
    fleet.until_first_tokens(warm)
    fleet.busy("b")  # now the first worker has one sequence and the second one has two
    fleet.add("c", slots=8)
    streams = [fleet.open(SYSTEM + f"two {n}", max_tokens=3000) for n in range(9)]
    lost = next(each for each in streams if worker_of(each) == "c")
    for each in streams:
        if each is not lost:
            each.cancel_nowait()
    fleet.until_first_tokens(lost)
    fleet.workers["c"].die()
    assert worker_of(lost) == worker


async def test_prefixes_of_sequences_that_run_count_within_the_bound_of_the_load() -> None:
    fleet = Fleet("a", "b")
    first = fleet.open(SYSTEM + "one", max_tokens=1000)
    fleet.until_first_tokens(first)
    second = fleet.open(SYSTEM + "two", max_tokens=1000)
    fleet.until_first_tokens(second)
    third = fleet.open(SYSTEM + "three", max_tokens=1000)
    fleet.until_first_tokens(third)
    fourth = fleet.open(SYSTEM + "four", max_tokens=1000)
    assert [worker_of(each) for each in (first, second, third, fourth)] == ["a", "a", "a", "b"]
    for each in (first, second, third, fourth):
        each.cancel_nowait()
    fleet.run()
    assert not any(handle.live for handle in fleet.router.pool)
    state = fleet.router._placement.routing._models["tiny"]
    assert all(load.pending == 0.0 for load in state.loads.values())


@pytest.mark.parametrize("routing", ["least-loaded", "round-robin"])
async def test_other_routing_holds_no_digests(routing: str) -> None:
    fleet = Fleet(routing=routing)
    chosen = []
    for n in range(6):
        group = fleet.open(SYSTEM + str(n), max_tokens=1)
        chosen.append(worker_of(group))
        fleet.run()
    assert chosen == (["a"] * 6 if routing == "least-loaded" else [*NAMES, *NAMES])
    assert fleet.metric("baton_prefix_digests") == 0


async def test_a_prompt_whose_log_probabilities_are_reported_is_computed_anew_anywhere() -> None:
    fleet = Fleet("a", "b")
    fleet.open(SYSTEM)
    fleet.run()
    fleet.busy("a")
    assert worker_of(fleet.open(SYSTEM, stream=False, prompt_logprobs=1)) == "b"


async def test_promises_that_workers_do_not_keep_lose_their_weight() -> None:
    """A template that changes the beginning of each prompt makes all digests worthless."""
    fleet = Fleet("a", "b")
    state = fleet.router._placement.routing._models["tiny"]
    for _ in range(1000):
        state.trust.add(0, 500)
    first = fleet.open(SYSTEM, max_tokens=1000)
    fleet.until_first_tokens(first)
    assert [worker_of(first), worker_of(fleet.open(SYSTEM))] == ["a", "b"]


async def test_short_prompts_that_are_recomputed_take_no_weight_from_the_digests_of_long_ones() -> None:
    """A prompt of 32 tokens is the shortest that has a digest. All but one of them would be too few to reuse."""
    fleet = Fleet("a", "b")
    for _ in range(200):
        short = fleet.open([*range(1, 33)], max_tokens=1)
        fleet.run()
    usage = short.sequences[0].usage
    assert usage is not None
    assert usage.cached_tokens == 0
    for _ in range(2):
        fleet.busy("a")
    warm = fleet.open(SYSTEM, max_tokens=1)
    assert worker_of(warm) == "b"
    while not warm.ended:
        fleet.workers["b"].step()
    for _ in range(3):
        fleet.busy("b")
    assert worker_of(fleet.open(SYSTEM)) == "b"


@pytest.mark.parametrize(("missing", "trust"), [(0, 1.0), (31, 1.0), (32, 1 - 32 / 640)])
async def test_a_promise_is_kept_if_less_is_missing_than_a_worker_would_reuse(missing: int, trust: float) -> None:
    fleet = Fleet("a", "b")
    fleet.open("x" * 640, max_tokens=1)
    fleet.run()
    group = fleet.open("x" * 640, max_tokens=1)
    number = group.sequences[0].submit.stream
    routing = fleet.router._placement.routing
    (handle,) = (each for each in fleet.router.pool if number in each.live)
    promised = routing._models["tiny"].loads[handle.name]._expected[number].promised
    assert promised == 640
    routing.started(handle, StartedStream(number, prompt_tokens=641, cached_tokens=640 - missing))
    assert routing._models["tiny"].trust.value(0.5) == trust


async def test_a_prompt_of_which_a_part_was_left_out_is_no_prefix_for_another_one() -> None:
    fleet = Fleet("a", "b")
    group = fleet.open("x" * 640)
    number = group.sequences[0].submit.stream
    routing = fleet.router._placement.routing
    (handle,) = (each for each in fleet.router.pool if number in each.live)
    assert routing._models["tiny"].index.holders(handle.name) == 1
    routing.started(handle, StartedStream(number, prefill_us=1000, prompt_tokens=641, kept=(0, 32, 600, 641)))
    assert routing._models["tiny"].index.holders(handle.name) == 0
    assert routing._models["tiny"].pace.prefill.value(-1.0) == -1.0, "not the pace of whole prompts"


async def test_equal_workers_are_used_in_turn_however_many_there_are() -> None:
    """Prompts of 40 workers that are idle, each with one slot: the one that was used least recently evicts its rows."""
    names = [f"w{number}" for number in range(40)]
    fleet = Fleet(*names, slots=1)
    used = []
    for n in range(80):
        used.append(worker_of(fleet.open(f"{n:02}" * 100, max_tokens=1)))
        fleet.run()
    assert used == names * 2
    fleet.add("new", slots=1)
    assert worker_of(fleet.open("another" * 30, max_tokens=1)) == "new", "it holds nothing"
    fleet.run()
    assert worker_of(fleet.open("79" * 100, max_tokens=1)) == names[-1]


async def test_the_state_of_a_model_goes_with_its_last_worker() -> None:
    fleet = Fleet("a", "b")
    fleet.open(SYSTEM)
    fleet.run()
    models = fleet.router._placement.routing._models
    for name in "ab":
        fleet.workers[name].change(running=False)
        fleet.router.remove(name)
    assert models == {}
    fleet.add("c")
    fleet.open(SYSTEM)
    fleet.run()
    assert list(models) == ["tiny"]


async def test_the_client_is_charged_for_what_is_computed() -> None:
    fleet = Fleet("a", "b")
    group = fleet.open(SYSTEM, key="k")
    cold = group.sequences[0].charged
    fleet.run()
    warm = fleet.open(SYSTEM, key="k").sequences[0].charged
    assert cold == group.sequences[0].terms.prompt_tokens
    assert warm < 0.2 * cold


async def test_shortest_uncached_first_knows_what_workers_hold() -> None:
    fleet = Fleet("a", "b", slots=1, scheduler_policy="shortest-uncached-first")
    fleet.open(SYSTEM)
    fleet.run()
    for n in range(4):
        fleet.open(f"{n}" * 50, max_tokens=50)
    cold = fleet.open("cold " * 60)
    warm = fleet.open(SYSTEM)
    assert cold.sequences[0].waited
    assert warm.sequences[0].waited
    assert warm.sequences[0].terms.prompt_tokens > cold.sequences[0].terms.prompt_tokens
    assert warm.sequences[0].uncached < cold.sequences[0].uncached


async def test_a_lone_worker_needs_no_digests() -> None:
    fleet = Fleet("a")
    group = fleet.open(SYSTEM)
    assert group.sequences[0].prefix._digests is None


async def test_a_worker_that_is_removed_is_forgotten() -> None:
    fleet = Fleet("a", "b")
    fleet.open(SYSTEM)
    fleet.run()
    handle = next(each for each in fleet.router.pool if each.name == "a")
    fleet.router.pool.swap(handle, next(each for each in fleet.router.pool if each.name == "b"))
    fleet.router.remove("a")
    assert fleet.metric("baton_prefix_digests", worker="a") == 0
    assert worker_of(fleet.open(SYSTEM)) == "b"


@pytest.fixture
async def sharing(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Two workers of one machine, which share a tier, and one of another machine."""
    fleet = Fleet(empty=True)
    for name, machine in (("a", "one"), ("b", "one"), ("c", "two")):
        fleet.tiered(name, tmp_path / machine)
    yield fleet
    fleet.close()


def answered(fleet: Fleet, prompt: str, worker: str, **fields: Any) -> RequestGroup:
    """A request that has ended on this worker, and whose rows are saved."""
    group = fleet.open(prompt, **fields)
    assert worker_of(group) == worker
    engine = fleet.workers[worker].engine
    while not group.ended:
        fleet.workers[worker].step()
    for _ in range(100):  # steps of an idle engine save what the budget has left
        engine.settle()
        if engine.idle:
            break
        fleet.workers[worker].step()
    return group


def first_on_a(fleet: Fleet, prompt: str, **fields: Any) -> list[RequestGroup]:
    """Let `a` compute a prompt, and then have more sequences than `b`, which has one more than `c`. Returns these."""
    others = [fleet.busy("b"), fleet.busy("c")]
    answered(fleet, prompt, "a", **fields)
    others.pop().close()
    fleet.workers["c"].step()
    return [*others, *(fleet.busy("a") for _ in range(3))]


async def test_a_worker_restores_what_another_one_of_its_machine_has_computed(sharing: Fleet) -> None:
    first_on_a(sharing, SYSTEM + "What is a keel?")
    again = answered(sharing, SYSTEM + "And a mast?", "b")
    assert again.sequences[0].usage is not None
    assert again.sequences[0].usage.cached_tokens >= len(SYSTEM) - 64
    started = again.sequences[0].attempts[-1].started
    assert started is not None
    assert started.stored_tokens == again.sequences[0].usage.cached_tokens
    assert sharing.metric("baton_prefix_routed_tokens_total", model="tiny") >= len(SYSTEM) - 128


async def test_a_prefix_outlives_the_worker_that_has_computed_it(sharing: Fleet) -> None:
    for group in first_on_a(sharing, SYSTEM + "What is a keel?")[1:]:
        group.close()
    sharing.workers["a"].die()
    answered(sharing, SYSTEM + "And a mast?", "b")


@pytest.mark.parametrize(("key", "worker"), [("mine", "b"), ("theirs", "c")])
async def test_a_tier_is_of_no_use_to_another_tenant(sharing: Fleet, key: str, worker: str) -> None:
    first_on_a(sharing, SYSTEM, key="mine")
    assert worker_of(sharing.open(SYSTEM, key=key)) == worker


async def test_promises_that_a_tier_does_not_keep_no_longer_count(sharing: Fleet, tmp_path: Path) -> None:
    chosen = []
    for number in range(4):
        prompt = f"{number} {SYSTEM}"
        others = first_on_a(sharing, prompt)
        for block in (tmp_path / "one").glob("*-*"):
            if not block.name.startswith("partial-"):  # it is being written, for another sequence
                block.unlink()
        group = sharing.open(prompt)
        chosen.append(worker_of(group))
        sharing.until_first_tokens(group)
        for each in (*others, group):
            each.close()
        sharing.run()
    assert (chosen[0], chosen[-1]) == ("b", "c")


async def test_a_worker_that_has_the_tier_is_chosen_by_its_load(sharing: Fleet) -> None:
    """The one with the fewest sequences restores a prefix that several could restore."""
    others = first_on_a(sharing, SYSTEM)
    sharing.busy("c")
    sharing.busy("c")
    others[0].close()
    sharing.workers["b"].step()
    assert worker_of(sharing.open(SYSTEM + "And a mast?")) == "b"


async def test_a_prompt_is_not_long_of_which_a_tier_restores_most(tmp_path: Path) -> None:
    fleet = Fleet(empty=True, long_prompt_tokens=len(SYSTEM) // 4)
    for name, machine in (("a", "one"), ("b", "one"), ("p", "two")):
        fleet.tiered(name, tmp_path / machine)
    prefill = fleet.workers["p"]
    assert prefill.status.hello is not None
    prefill.change(hello=replace(prefill.status.hello, phases="prefill"))
    answered(fleet, SYSTEM, "a")
    fleet.workers["a"].die()
    fleet.busy("b")
    assert worker_of(fleet.open(SYSTEM)) == "b"
    assert worker_of(fleet.open(f"another one: {SYSTEM}")) == "p"
    fleet.close()
