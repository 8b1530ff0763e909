"""Prefill workers compute long prompts, whose sequences go on with others: the real router and the worker's engine."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from actors.supervision.worker import WorkerState
from gateway.openai.decoding import RequestDecoder
from gateway.routing.placement.prefill_choice import LEAST_TOKENS, LONG_S
from gateway.routing.placement.row_transfers import ATTEMPTS, RETRY_S
from gateway.routing.prefixes.prefix_routing import PREFILL_RATE
from gateway.routing.prefixes.worker_load import MIN_MEASURED
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from protocol.commands import ReadRows, WriteRows
from protocol.events import Event, Heartbeat, Phases, Rows, Step
from tests.gateway.harness import virtual
from tests.gateway.harness.engines import WIDTH, Answer, EngineWorker, answer_of, undisturbed

pytestmark = pytest.mark.anyio

LONG = "a long prompt, which takes long to compute: " * 12
SHORT = "a short one"
TOKENS = 100
"""Tokens of a prompt from which it is long in these tests: between the two."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual.BACKEND


class Fleet:
    """Workers by name, with the roles that are given."""

    def __init__(self, *, slots: int = 4, long_prompt_tokens: int = TOKENS, **phases: Phases) -> None:
        self.settings = GatewaySettings(long_prompt_tokens=long_prompt_tokens)
        self.router = Router(self.settings)
        self.workers: dict[str, EngineWorker] = {}
        for name, each in phases.items():
            self.join(name, each, slots=slots)
        self.texts: dict[RequestGroup, str] = {}
        self.expected: dict[RequestGroup, Answer] = {}

    def join(self, name: str, phases: Phases, *, slots: int = 4, role: Role = Role.ACTIVE) -> EngineWorker:
        worker = self.workers[name] = EngineWorker(name, slots=slots)
        hello = worker.status.hello
        assert hello is not None
        worker.status = replace(worker.status, hello=replace(hello, phases=phases))
        worker.join(self.router, role)
        return worker

    def open(self, prompt: str | list[int] | None = LONG, key: bytes = b"", **fields: Any) -> RequestGroup:
        body = {"model": "tiny", "prompt": prompt, "stream": True, "max_tokens": 60, "ignore_eos": True, "seed": 7}
        request = RequestDecoder(self.settings).completion(json.dumps(body | fields).encode()).request
        group = self.router.admission.open(request, "r", key=key, checked=True)
        self.texts[group] = ""
        self.expected[group] = undisturbed(group.sequences[0].submit)
        return group

    async def busy(self, **fields: Any) -> RequestGroup:
        """Begin a sequence that decodes to the end."""
        group = self.open(SHORT, max_tokens=400, **fields)
        await self.run(lambda: tokens(group) > 1)
        return group

    async def run(self, until: Callable[[], bool], most: int = 2000) -> None:
        """Let the workers compute, in turns."""
        for _ in range(most):
            if until():
                return
            for worker in self.workers.values():
                worker.step()
            self.read()
            await asyncio.sleep(0)
        raise AssertionError("it has not come to that")

    def read(self) -> None:
        for group in self.texts:
            self.texts[group] += "".join(getattr(delta, "text", "") for delta in group.take())

    async def run_to_the_end(self) -> None:
        await self.run(lambda: all(group.ended for group in self.texts))
        self.read()
        for group, expected in self.expected.items():
            assert group.failure is None
            assert answer_of(group.sequences[0], self.texts[group]) == expected
        assert self.router.is_idle

    def outcomes(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples]
        return {each.labels["outcome"]: each.value for each in samples if each.name == "baton_row_transfers_total"}

    def asked(self, name: str, kind: type[ReadRows | WriteRows]) -> bool:
        return any(isinstance(each, kind) for message in self.workers[name].sent for each in message)


def tokens(group: RequestGroup) -> int:
    return len(group.sequences[0].tokens)


def on(group: RequestGroup) -> str:
    return group.sequences[0].worker


async def test_a_long_prompt_is_computed_beside_the_decoding_sequences_which_it_joins_with_its_rows() -> None:
    fleet = Fleet(d="decode", p="prefill")
    decoding = await fleet.busy()
    assert on(decoding) == "d"
    group = fleet.open()
    assert on(group) == "p"
    await fleet.run(lambda: on(group) == "d")
    assert 0 < tokens(group) < 60
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {"moved": 1}
    prefilled = fleet.workers["d"].engine.gauges().prefill_tokens
    assert prefilled < len(SHORT) + 30, "the prompt was not computed twice"
    usage = group.sequences[0].usage
    assert usage is not None
    assert usage.cached_tokens == 0, "the prompt was not cached when it came"


@pytest.mark.parametrize("busy", [False, True])
async def test_an_idle_decode_worker_computes_the_prompt_itself(busy: bool) -> None:
    fleet = Fleet(d="decode", p="prefill")
    if busy:
        await fleet.busy()
    group = fleet.open()
    assert on(group) == ("p" if busy else "d")
    await fleet.run_to_the_end()


@pytest.mark.parametrize("extra", [-1, 0])
async def test_a_prompt_is_long_from_so_many_tokens_on(extra: int) -> None:
    fleet = Fleet(d="decode", p="prefill", long_prompt_tokens=200)
    await fleet.busy()
    group = fleet.open([65] * (200 + extra))  # tokens are counted, and text is estimated
    assert on(group) == ("d" if extra < 0 else "p")
    await fleet.run_to_the_end()


async def test_rows_of_embeddings_do_not_go_to_a_prefill_worker_as_their_sequence_could_not_leave_it() -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    rows = bytes(200 * WIDTH * 4)
    header = json.dumps({"a": {"dtype": "F32", "shape": [200, WIDTH], "data_offsets": [0, len(rows)]}}).encode()
    file = len(header).to_bytes(8, "little") + header + rows
    group = fleet.open(None, prompt_embeds=base64.b64encode(file).decode())
    assert on(group) == "d"
    assert on(fleet.open([65] * 200)) == "p"
    await fleet.run_to_the_end()


@pytest.mark.parametrize("rate", [PREFILL_RATE, 4 * LEAST_TOKENS, LEAST_TOKENS])
async def test_without_a_setting_a_prompt_is_long_that_takes_half_a_second_as_measured(rate: float) -> None:
    fleet = Fleet(d="decode", p="prefill", long_prompt_tokens=0)
    worker = fleet.workers["d"]
    say = worker.say

    def saying(event: Event, incarnation: int | None = None) -> None:
        if isinstance(event, Step):
            slower = [replace(each, prefill_us=int(1e6 * each.prompt_tokens / rate)) for each in event.started]
            event = replace(event, started=tuple(slower))
        say(event, incarnation)

    worker.say = saying  # type: ignore[method-assign]
    if rate != PREFILL_RATE:  # otherwise nothing is measured
        fleet.open([65] * MIN_MEASURED, max_tokens=1)
        await fleet.run_to_the_end()
    await fleet.busy()
    long = max(LEAST_TOKENS, int(LONG_S * rate))
    assert on(fleet.open([66] * (long - 1), max_tokens=20)) == "d"
    assert on(fleet.open([67] * long, max_tokens=20)) == "p"
    await fleet.run_to_the_end()


async def test_short_prompts_go_to_a_prefill_worker_only_if_the_others_have_no_slot_and_leave_it_again() -> None:
    fleet = Fleet(slots=2, d="decode", p="prefill")
    first, second = await fleet.busy(), await fleet.busy(seed=8)
    third = fleet.open(SHORT * 8, max_tokens=300)
    assert [on(each) for each in (first, second, third)] == ["d", "d", "p"]
    first.close()
    del fleet.texts[first], fleet.expected[first]
    await fleet.run(lambda: tokens(third) > 5)
    await asyncio.sleep(RETRY_S + 0.01)
    await fleet.run(lambda: on(third) == "d")
    await fleet.run_to_the_end()


@pytest.mark.parametrize("phases", [["prefill"], ["prefill", "prefill"]])
async def test_prefill_workers_alone_serve_everything(phases: list[Phases]) -> None:
    fleet = Fleet(**{f"p{number}": each for number, each in enumerate(phases)})  # type: ignore[arg-type]
    fleet.open()
    fleet.open(SHORT)
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {}


async def test_a_decode_worker_that_joins_later_goes_on_with_the_streams() -> None:
    fleet = Fleet(p="prefill")
    group = fleet.open(max_tokens=300)
    await fleet.run(lambda: tokens(group) > 1)
    fleet.join("d", "both")
    await asyncio.sleep(RETRY_S + 0.01)
    await fleet.run(lambda: on(group) == "d")
    await fleet.run_to_the_end()


async def test_a_decode_worker_without_a_slot_gets_the_stream_when_it_has_one() -> None:
    fleet = Fleet(slots=2, d="decode", p="prefill")
    await fleet.busy()
    group = fleet.open(max_tokens=300)
    assert on(group) == "p"
    other = fleet.open(SHORT, max_tokens=20)
    assert on(other) == "d"
    await fleet.run(lambda: other.ended)
    assert on(group) == "p", "it went on meanwhile"
    assert fleet.outcomes() == {}
    await asyncio.sleep(RETRY_S + 0.01)
    await fleet.run(lambda: on(group) == "d")
    await fleet.run_to_the_end()


async def test_a_slot_that_is_taken_during_the_transfer_lets_the_stream_stay() -> None:
    fleet = Fleet(slots=2, d="decode", p="prefill")
    await fleet.busy()
    group = fleet.open(max_tokens=200)
    await fleet.run(lambda: fleet.asked("d", WriteRows))
    other = fleet.open(SHORT, seed=3, max_tokens=400)
    assert on(other) == "d"
    await fleet.run(lambda: group.ended)
    assert on(group) == "p"
    await fleet.run_to_the_end()
    assert "moved" not in fleet.outcomes()


async def test_rows_of_another_format_are_not_sent_and_the_prompt_is_computed_where_it_goes_on() -> None:
    fleet = Fleet(d="decode", p="prefill")
    ready = fleet.workers["p"].status.ready
    assert ready is not None
    fleet.workers["p"].change(ready=replace(ready, rows_format="another"))
    await fleet.busy()
    group = fleet.open()
    assert on(group) == "d"
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {}


async def test_rows_that_are_refused_leave_the_stream_where_it_is() -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    prefill = fleet.workers["p"]
    say = prefill.say

    def saying(event: Event, incarnation: int | None = None) -> None:
        say(replace(event, digest=bytes(16)) if isinstance(event, Rows) and event.tokens else event, incarnation)

    prefill.say = saying  # type: ignore[method-assign]
    group = fleet.open()
    await fleet.run(lambda: group.ended)
    assert on(group) == "p"
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {"refused": ATTEMPTS}


STAGES: dict[str, Callable[[Fleet, RequestGroup], bool]] = {
    "in the prompt": lambda fleet, group: fleet.workers["p"].engine.gauges().prefill_tokens > 0 and not tokens(group),
    "before rows are read": lambda fleet, group: fleet.asked("p", ReadRows),
    "during the transfer": lambda fleet, group: fleet.asked("d", WriteRows),
    "after it": lambda fleet, group: on(group) == "d",
    "in the answer": lambda fleet, group: on(group) == "d" and tokens(group) > 40,
}


@pytest.mark.parametrize("victim", ["p", "d"])
@pytest.mark.parametrize("stage", STAGES)
async def test_the_tokens_are_those_of_an_undisturbed_run_when_a_worker_dies(stage: str, victim: str) -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    group = fleet.open()
    await fleet.run(lambda: STAGES[stage](fleet, group))
    assert not group.ended
    fleet.workers[victim].die()
    await fleet.run(lambda: True)
    fleet.workers[victim].come_back()
    await fleet.run_to_the_end()


@pytest.mark.parametrize("stage", STAGES)
async def test_a_client_that_leaves_at_any_stage_leaves_nothing(stage: str) -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    group = fleet.open()
    await fleet.run(lambda: STAGES[stage](fleet, group))
    group.close()
    del fleet.texts[group], fleet.expected[group]
    await fleet.run_to_the_end()
    await fleet.run(lambda: all(worker.idle for worker in fleet.workers.values()))
    assert not fleet.workers["p"].engine.gauges().slots_active


async def test_a_prefill_worker_drains_while_it_hands_over() -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    groups = [fleet.open(f"{number} {LONG}", max_tokens=200) for number in range(2)]
    assert [on(each) for each in groups] == ["p", "p"]
    await fleet.run(lambda: fleet.asked("d", WriteRows))
    fleet.workers["p"].change(state=WorkerState.DRAINING)
    fleet.workers["p"].change(reason="once more")
    await fleet.run(lambda: on(groups[0]) == "d" and tokens(groups[1]) > 1)
    await asyncio.sleep(RETRY_S + 0.01)
    await fleet.run(lambda: not fleet.router.pool["p"].live)
    assert all(on(each) == "d" for each in groups)
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {"moved": 2}


async def test_a_draining_decode_worker_hands_over_to_a_prefill_worker_if_there_is_no_other() -> None:
    fleet = Fleet(d="decode", p="prefill")
    group = fleet.open(max_tokens=300)
    await fleet.run(lambda: tokens(group) > 1)
    fleet.workers["d"].change(state=WorkerState.DRAINING)
    await fleet.run(lambda: on(group) == "p")
    fleet.join("e", "decode")
    await asyncio.sleep(RETRY_S + 0.01)
    await fleet.run(lambda: on(group) == "e")
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {"moved": 2}


async def test_a_decode_worker_that_has_the_beginning_of_a_prompt_computes_the_rest() -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    first = fleet.open(max_tokens=5)
    await fleet.run(lambda: first.ended)
    fleet.workers["d"].engine.take_retention_changes()
    followed = fleet.open(max_tokens=100)
    await fleet.run(lambda: on(followed) == "d" and tokens(followed) > 5)
    again = fleet.open(LONG + "and a bit", max_tokens=5)
    assert on(again) == "d", "it has a sequence with this beginning"
    await fleet.run_to_the_end()


async def test_a_prefill_worker_with_many_tokens_to_compute_gets_no_more_than_others_would_be_faster_with() -> None:
    fleet = Fleet(d="decode", p="prefill")
    await fleet.busy()
    groups = [fleet.open(f"{number} {LONG}") for number in range(3)]
    assert [on(each) for each in groups] == ["p", "p", "d"]
    await fleet.run_to_the_end()


async def test_a_worker_of_both_phases_is_preferred_to_one_that_decodes_and_keeps_the_stream() -> None:
    fleet = Fleet(d="decode", b="both")
    busy = [await fleet.busy(), await fleet.busy(seed=8)]
    assert sorted(on(each) for each in busy) == ["b", "d"]
    groups = [fleet.open(f"{number} {LONG}") for number in range(2)]
    assert [on(each) for each in groups] == ["b", "b"]
    await fleet.run(lambda: all(tokens(each) > 5 for each in groups))
    assert [on(each) for each in groups] == ["b", "b"]
    await fleet.run_to_the_end()
    assert fleet.outcomes() == {}


async def test_a_standby_takes_the_place_of_a_prefill_worker() -> None:
    fleet = Fleet(d="decode", p="prefill")
    fleet.join("s", "both", role=Role.STANDBY)
    await fleet.busy()
    group = fleet.open(max_tokens=200)
    await fleet.run(lambda: fleet.asked("d", WriteRows))
    fleet.workers["p"].die()
    assert fleet.router.pool["s"].role is Role.ACTIVE
    later = fleet.open(SHORT)
    assert on(later) in ("d", "s")
    fleet.workers["p"].come_back()
    assert fleet.router.pool["p"].role is Role.STANDBY
    await fleet.run_to_the_end()
    assert not group.failure


async def test_a_slot_that_another_gateway_has_is_not_free_for_a_stream() -> None:
    fleet = Fleet(slots=2, d="decode", p="prefill")
    others = 1
    say = fleet.workers["d"].say

    def saying(event: Event, incarnation: int | None = None) -> None:
        if isinstance(event, Step | Heartbeat):
            event = replace(event, gauges=replace(event.gauges, others=others))
        say(event, incarnation)

    fleet.workers["d"].say = saying  # type: ignore[method-assign]
    await fleet.busy()
    group = fleet.open(max_tokens=300)
    await fleet.run(lambda: tokens(group) > 20)
    assert on(group) == "p"
    assert fleet.outcomes() == {}
    others = 0
    await fleet.run(lambda: not fleet.router.pool["d"].others)
    await asyncio.sleep(RETRY_S + 0.01)
    await fleet.run(lambda: on(group) == "d")
    await fleet.run_to_the_end()


@pytest.mark.parametrize("before", ["both", "decode"])
async def test_a_role_that_changes_without_the_load_is_noted(before: Phases) -> None:
    fleet = Fleet(a=before, b="both")
    worker = fleet.workers["a"]
    hello = worker.status.hello
    assert hello is not None
    worker.change(hello=replace(hello, phases="decode" if before == "both" else "both"))
    assert [each.name for each in fleet.router.pool.of_one_phase("tiny")] == (["a"] if before == "both" else [])
