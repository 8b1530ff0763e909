"""Streams that another gateway continues: who gets them, when, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from gateway.keys.key_file import KeyFile
from gateway.keys.record import KeyLimits, make_key, make_record
from gateway.routing.adapters.registry import AdapterVersion
from gateway.streaming.moving.record_store import StreamDemand
from gateway.streaming.moving.stream_record import MAX_BODY_BYTES, MAX_SEQUENCES, decode_record
from gateway.streaming.resumable import StreamState
from protocol.errors import ErrorCode
from protocol.events import Usage
from tests.gateway.harness.asgi import Connection
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.streaming.moving.meaning import id_of
from tests.gateway.streaming.moving.two_gateways import Gateway, Shared, gateway, two_gateways
from tests.gateway.streaming.resuming import KEPT
from tests.gateway.streaming.test_peer import Other

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


async def begin(served: Gateway, body: dict[str, Any] = KEPT, /, **headers: str) -> tuple[Connection, int]:
    """A stream whose client has its first event, and its number at the worker."""
    known = len(served.worker.submits)
    connection = served.open("POST", PATH, body, **headers)
    submit = (await served.worker.wait_submits(known + 1))[-1]
    served.worker.token(submit.stream, "one", 1)
    await connection.until(1)
    return connection, submit.stream


def path_of(connection: Connection) -> str:
    return f"/v1/streams/{connection.headers['x-stream-id']}"


def text_of(connection: Connection) -> str:
    data = [event.rpartition(b"data: ")[2] for event in connection.events]
    return "".join(json.loads(each)["choices"][0]["text"] for each in data if each != b"[DONE]")


async def test_a_stream_of_a_gateway_that_is_gone_goes_on_at_another_with_the_same_request() -> None:
    async with two_gateways() as (one, two, _):
        body = KEPT | {"temperature": 1.0, "stop": ["x"], "logit_bias": {"7": 1}}
        first, number = await begin(one, body)
        assert first.headers["x-stream-gateways"] == "any"
        one.die()
        again = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]))
        (submit,) = await two.worker.wait_submits(1)
        (before,) = one.worker.submits
        assert (submit.sampling, submit.input, submit.limits) == (before.sampling, before.input, before.limits)
        two.worker.token(submit.stream, "on", 1)
        two.worker.token(submit.stream, "e two", 2)
        two.worker.finish(submit.stream)
        await again.ended.wait()
        assert text_of(again) == " two"
        assert again.headers["x-stream-gateways"] == "any"
        assert b'"created":%d' % json.loads(first.events[0].partition(b"data: ")[2])["created"] in again.events[0]
        assert number in [handle.stream for handle in one.worker.submits]


async def test_a_stream_at_a_live_gateway_moves_when_its_client_asks_another_one() -> None:
    async with two_gateways() as (one, two, _):
        first, number = await begin(one)
        last = id_of(first.events[-1])
        refused = await two.ask("GET", path_of(first), last_event_id=last)
        assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (409, "stream_elsewhere", "1")
        one.records.renew()
        await first.ended.wait()
        assert b"stream_taken" in first.body, "the latest reader gets it"
        assert one.worker.cancels == [number]
        again = two.open("GET", path_of(first), last_event_id=last)
        (submit,) = await two.worker.wait_submits(1)
        two.worker.finish(submit.stream, "one and all")
        await again.ended.wait()
        assert text_of(again) == " and all"


async def test_a_gateway_that_lost_a_stream_to_another_one_lets_go_of_it() -> None:
    async with two_gateways() as (one, two, shared):
        first, number = await begin(one)
        one.die()  # for the others: it only did not reach the store
        second = two.open("GET", path_of(first))
        await second.started()
        one.streams.demand(first.headers["x-stream-id"], StreamDemand.TAKEN)
        await first.ended.wait()
        assert one.worker.cancels == [number]
        assert shared.records[first.headers["x-stream-id"]][1] == "two"
        one.streams.demand(first.headers["x-stream-id"], StreamDemand.TAKEN)  # again: nothing is left to do


async def test_a_third_gateway_goes_on_where_the_second_one_was() -> None:
    async with two_gateways() as (one, two, _):
        first, _number = await begin(one)
        received = text_of(first)
        one.die()
        second = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]))
        (submit,) = await two.worker.wait_submits(1)
        two.worker.token(submit.stream, "one, two", 1, 2)
        await second.until(1)
        two.die()
        one.streams.close()
        third = one.open("GET", path_of(first), last_event_id=id_of(second.events[-1]))
        last = (await one.worker.wait_submits(2))[-1]
        one.worker.finish(last.stream, "one, two, three")
        await third.ended.wait()
        assert received + text_of(second) + text_of(third) == "one, two, three"


@pytest.mark.parametrize("alive", [True, False])
async def test_a_stream_is_cancelled_at_any_gateway(alive: bool) -> None:
    async with two_gateways() as (one, two, shared):
        first, number = await begin(one)
        if not alive:
            one.die()
        assert (await two.ask("DELETE", path_of(first))).status == 204
        if alive:
            one.records.renew()
            await first.ended.wait()
            assert one.worker.cancels == [number]
        assert shared.records == {}
        assert (await two.ask("DELETE", path_of(first))).status == 404
        assert (await two.ask("GET", path_of(first))).status == 404


async def test_only_the_key_of_a_stream_gets_it() -> None:
    async with two_gateways() as (one, two, _):
        first, _number = await begin(one, authorization="Bearer a")
        one.die()
        for method in ("GET", "DELETE"):
            refused = await two.ask(method, path_of(first), authorization="Bearer b")
            assert (refused.status, refused.error["code"]) == (404, "stream_not_found")
        again = two.open("GET", path_of(first), authorization="Bearer a")
        await again.started()
        assert again.status == 200


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "x" * MAX_BODY_BYTES},
        {"n": MAX_SEQUENCES + 1},
        {"echo": True},
    ],
    ids=["bytes", "sequences", "echo"],
)
async def test_some_streams_stay_with_their_gateway_and_say_so(change: dict[str, Any]) -> None:
    async with two_gateways() as (one, two, shared):
        first = one.open("POST", PATH, KEPT | change)
        submit = (await one.worker.wait_submits(1))[0]
        one.worker.token(submit.stream, "one", 1)
        await first.until(1)
        assert first.headers["x-stream-gateways"] == "one"
        assert shared.records == {}
        assert b"-1\n" in first.events[0], "the id is a number"
        assert (await two.ask("GET", path_of(first))).status == 404


async def test_the_largest_body_and_the_most_sequences_move() -> None:
    async with two_gateways() as (one, _, shared):
        frame = len(json.dumps(KEPT | {"prompt": ""}))
        for change in ({"prompt": "x" * (MAX_BODY_BYTES - frame)}, {"n": MAX_SEQUENCES}):
            one.open("POST", PATH, KEPT | change)
        await one.worker.wait_submits(1 + MAX_SEQUENCES)
        assert len(shared.records) == 2


async def test_a_store_without_room_changes_nothing_for_the_stream() -> None:
    async with two_gateways() as (one, _, shared):
        one.records.room = False
        first, number = await begin(one)
        one.worker.finish(number)
        await first.ended.wait()
        assert first.headers["x-stream-gateways"] == "one"
        assert first.events[-1].endswith(b"[DONE]")
        assert shared.records == {}


async def test_the_record_goes_with_the_stream() -> None:
    async with two_gateways() as (one, _, shared):
        first, number = await begin(one)
        one.worker.finish(number)
        await first.ended.wait()
        assert len(shared.records) == 1
        await anyio.sleep(61)
        assert shared.records == {}
        gone = one.open("POST", PATH, KEPT)
        await one.worker.wait_submits(2)
        await gone.leave()
        assert shared.records == {}, "its client never knew its id"


async def test_other_output_than_the_client_has_is_not_continued() -> None:
    async with two_gateways() as (one, two, _):
        for output in ("One", "on"):
            first, _number = await begin(one)
            one.die()
            again = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]))
            submit = (await two.worker.wait_submits(1))[-1]
            two.worker.finish(submit.stream, output)
            await again.ended.wait()
            assert again.events[0].partition(b"data: ")[2].startswith(b'{"error":')
            assert b"stream_lost" in again.events[0]
            assert again.events[-1].endswith(b"[DONE]")
            two.worker.sent.clear()


@pytest.mark.parametrize(
    ("last", "query", "status", "code"),
    [
        ("{id}-1", "", 410, "events_gone"),
        ("", "starting_after=1", 410, "events_gone"),
        ("{id}-1.1.0.00000000.1.0.00000000", "", 400, "invalid_request"),
        ("{id}-1.1.0", "", 400, "invalid_request"),
        ("{id}-1.1.0.0000000g", "", 400, "invalid_request"),
        ("{id}-1_0.1.2", "", 400, "invalid_request"),
        ("{id}-1.3.0.00000000_e", "", 204, ""),
    ],
)
async def test_an_invalid_position_is_refused_and_the_stream_stays_to_be_had(
    last: str, query: str, status: int, code: str
) -> None:
    async with two_gateways() as (one, two, shared):
        first, _number = await begin(one)
        one.die()
        stream_id = first.headers["x-stream-id"]
        headers = {"last_event_id": last.format(id=stream_id)} if last else {}
        refused = await two.ask("GET", path_of(first), query=query, **headers)
        assert refused.status == status
        if code:
            assert refused.error["code"] in (code, "invalid")
        assert two.worker.submits == []
        assert shared.records[stream_id][1] in ("one", "")
        again = two.open("GET", path_of(first), query="starting_after=0")
        await again.started()
        assert again.status == 200


async def test_an_unreachable_store_is_no_unknown_stream() -> None:
    async with two_gateways() as (one, two, shared):
        first, _number = await begin(one)
        shared.reachable = False
        for method in ("GET", "DELETE"):
            refused = await two.ask(method, path_of(first))
            assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "unavailable", "1")
        assert (await two.ask("GET", "/v1/streams/no-such-stream")).status == 404, (
            "the store is not asked for what is not an id"
        )


async def test_a_gateway_that_cannot_take_a_stream_leaves_it_to_others() -> None:
    async with two_gateways(max_resumable_streams=1) as (one, two, shared):
        first, _number = await begin(one)
        one.die()
        other, number = await begin(two)
        refused = await two.ask("GET", path_of(first))
        assert (refused.status, refused.error["code"]) == (429, "overloaded")
        assert shared.records[first.headers["x-stream-id"]][1] == "one"
        two.worker.finish(number)
        await other.ended.wait()
        two.router.admission.drain_nowait()
        refused = await two.ask("GET", path_of(first))
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert shared.records[first.headers["x-stream-id"]][1] == ""


async def test_two_requests_for_one_stream_at_once_compute_it_once() -> None:
    async with two_gateways() as (one, two, _):
        first, _number = await begin(one)
        one.die()
        asked = [two.open("GET", path_of(first)) for _ in range(3)]
        await two.worker.wait_submits(1)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert len(two.worker.submits) == 1
        assert sorted(each.status for each in asked)[0] == 200
        assert two.router.metrics.render().decode().count('baton_resumable_streams{state="read"} 1.0') == 1


async def test_the_gateway_whose_port_was_taken_over_keeps_its_streams_until_it_is_gone() -> None:
    shared, other = Shared(), Other()
    async with gateway("one", shared) as one, gateway("two", shared, peer=other) as two:
        first, _number = await begin(one)
        relayed = await two.ask("GET", path_of(first), last_event_id=id_of(first.events[-1]))
        assert relayed.body == b"data: [DONE]\n\n"
        asked = {"Last-Event-ID": id_of(first.events[-1])}
        assert other.asked == [("GET", path_of(first), asked)]
        assert shared.demands == {}, "or it would end the stream that it sends"
        shared.reachable = False
        assert (await two.ask("GET", path_of(first))).body == b"data: [DONE]\n\n", "it needs no store for it"
        assert (await two.ask("DELETE", path_of(first))).status == 200
        assert [method for method, *_ in other.asked] == ["GET", "GET", "DELETE"]
        shared.reachable = True
    gone = Other(gone=True)
    async with gateway("one", shared) as one, gateway("two", shared, peer=gone) as two:
        first, _number = await begin(one)
        refused = await two.ask("GET", path_of(first))
        assert (refused.status, refused.error["code"]) == (409, "stream_elsewhere")
        assert len(shared.demands) == 1, "a third gateway has it"
        one.die()
        again = two.open("GET", path_of(first))
        await again.started()
        assert again.status == 200
        assert len(gone.asked) == 1


@pytest.mark.parametrize("record", [b"nonsense", b"", b"\x80"])
async def test_a_record_of_another_version_is_none(record: bytes) -> None:
    async with two_gateways() as (one, two, shared):
        first, _number = await begin(one)
        one.die()
        stream_id = first.headers["x-stream-id"]
        owner, holder, _ = shared.records[stream_id]
        shared.records[stream_id] = owner, holder, record
        refused = await two.ask("GET", path_of(first))
        assert (refused.status, refused.error["code"]) == (404, "stream_not_found")


async def test_a_record_of_a_path_or_with_sequences_of_another_version_is_none() -> None:
    async with two_gateways() as (one, two, shared):
        first, _number = await begin(one)
        one.die()
        stream_id = first.headers["x-stream-id"]
        owner, holder, encoded = shared.records[stream_id]
        record = decode_record(encoded)
        for changed in (replace(record, path="/v2"), replace(record, seeds=(1, 2)), replace(record, path="/tokenize")):
            shared.records[stream_id] = owner, holder, changed.encoded()
            refused = await two.ask("GET", path_of(first))
            assert (refused.status, refused.error["code"]) == (404, "stream_not_found")
        assert two.worker.submits == []


@pytest.mark.parametrize(
    "change", [{"previous_response_id": "{id}"}, {"input": [{"type": "item_reference", "id": "{item}"}]}]
)
async def test_a_response_that_refers_to_stored_ones_stays(change: dict[str, Any]) -> None:
    async with two_gateways() as (one, _, shared):
        body = {"model": "tiny", "input": "hi"}
        earlier = one.open("POST", "/v1/responses", body)
        (submit,) = await one.worker.wait_submits(1)
        one.worker.finish(submit.stream, "one")
        await earlier.ended.wait()
        made = json.loads(earlier.body)
        known = json.dumps(change).replace("{id}", made["id"]).replace("{item}", made["output"][0]["id"])
        kept = {"stream": True, "stream_options": {"resume_s": 60}}
        first = one.open("POST", "/v1/responses", body | kept | json.loads(known))
        submit = (await one.worker.wait_submits(2))[-1]
        one.worker.token(submit.stream, "two", 1)
        await first.until(1)
        assert first.headers["x-stream-gateways"] == "one"
        assert shared.records == {}


async def test_a_failure_at_the_new_gateway_is_the_last_event() -> None:
    async with two_gateways() as (one, two, _):
        first, _number = await begin(one)
        one.die()
        again = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]))
        (submit,) = await two.worker.wait_submits(1)
        two.worker.fail(submit.stream, ErrorCode.CONTEXT, "too long")
        await again.ended.wait()
        assert (again.status, b"too long" in again.events[0]) == (200, True)


async def test_a_stream_is_computed_again_with_comments_meanwhile() -> None:
    async with two_gateways(waiting_comment_s=5.0) as (one, two, _):
        first, number = await begin(one)
        one.worker.token(number, " two three", 2, 3)
        await first.until(2)
        one.die()
        again = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]))
        (submit,) = await two.worker.wait_submits(1)
        for text in ("one", " two", " thr"):
            await anyio.sleep(5.1)
            two.worker.token(submit.stream, text, 1)
            for _ in range(9):
                await anyio.lowlevel.checkpoint()
        assert again.body.count(b": waiting\n") == 3
        two.worker.finish(submit.stream, "ee four")
        await again.ended.wait()
        assert text_of(again) == " four"


async def test_a_gateway_that_leaves_hands_over_what_others_can_continue() -> None:
    async with two_gateways() as (one, two, shared):
        first, number = await begin(one)
        unknown = one.open("POST", PATH, KEPT)
        await one.worker.wait_submits(2)
        one.records.room = False
        stays, _ = await begin(one)
        one.streams.leave()
        await first.ended.wait()
        assert not first.whole, "its connection breaks, so that its client comes back"
        assert [b"error" in event for event in first.events] == [False]
        assert not stays.ended.is_set()
        assert not unknown.ended.is_set(), "its client does not know its id, and gets an error"
        assert one.worker.cancels == [number]
        assert one.streams._counts[StreamState.READ] == 2
        again = two.open("GET", path_of(first))
        await again.started()
        assert again.status == 200
        assert shared.records[first.headers["x-stream-id"]][1] == "two"


async def test_the_key_is_charged_for_what_is_computed_again(tmp_path: Path) -> None:
    key, file = make_key(), tmp_path / "keys"
    KeyFile(file).add(make_record("alice", key, KeyLimits(tokens_per_minute=1000, max_concurrent=1)))
    headers = {"authorization": f"Bearer {key}"}
    async with two_gateways(api_keys_file=str(file)) as (one, two, _):
        first, _number = await begin(one, **headers)
        one.die()
        again = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]), **headers)
        (submit,) = await two.worker.wait_submits(1)
        over = await two.ask("POST", PATH, KEPT, **headers)
        assert (over.status, over.error["code"]) == (429, "rate_limit_exceeded"), "it counts as a request"
        two.worker.finish(submit.stream, "one two", usage=Usage(3, 20))
        await again.ended.wait()
        metrics = two.router.metrics.render().decode()
        assert 'baton_key_requests_total{key="alice"} 1.0' in metrics
        assert 'baton_key_tokens_total{key="alice",kind="prompt"} 3.0' in metrics
        assert 'baton_key_tokens_total{key="alice",kind="completion"} 20.0' in metrics


async def test_a_key_that_may_send_none_leaves_the_stream_to_other_gateways(tmp_path: Path) -> None:
    key, file = make_key(), tmp_path / "keys"
    KeyFile(file).add(make_record("alice", key, KeyLimits(max_concurrent=1)))
    headers = {"authorization": f"Bearer {key}"}
    async with two_gateways(api_keys_file=str(file)) as (one, two, shared):
        first, _number = await begin(one, **headers)
        one.die()
        await begin(two, **headers)
        refused = await two.ask("GET", path_of(first), **headers)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert shared.records[first.headers["x-stream-id"]][1] == ""


ADAPTER = "sql"
LOADED = AdapterVersion(ADAPTER, "tiny", 1, "0" * 32, ("/none",))


def with_adapter(served: Gateway, at: str, digest: str) -> None:
    """Let requests of a gateway name an adapter, which was loaded with the model or at run time."""
    status = served.worker.status
    assert status.ready is not None
    assert status.hello is not None
    if at == "start":
        ready, hello = replace(status.ready, adapters=(ADAPTER,)), replace(status.hello, model_digest=digest)
        served.worker.change(ready=ready, hello=hello)
        return
    registry, handle = served.router.pool.runtime, served.router.pool["w0"]
    registry.want(version := dataclasses.replace(LOADED, digest=digest))
    registry.publish(version)
    handle.loaded_adapters.add(version.wire)


@pytest.mark.parametrize("at", ["start", "run time"])
@pytest.mark.parametrize("other", ["same", "digest", "gone", "model"])
async def test_a_stream_with_an_adapter_goes_on_only_where_its_weights_are_the_same(at: str, other: str) -> None:
    async with two_gateways() as (one, two, shared):
        with_adapter(one, at, "0" * 32)
        if other in ("same", "digest"):
            with_adapter(two, at, ("0" if other == "same" else "1") * 32)
        elif other == "model":
            FakeWorker("w1", model=ADAPTER).join(two.router)
        first, _number = await begin(one, KEPT | {"model": ADAPTER})
        assert (first.headers["x-stream-gateways"], one.worker.submits[0].adapter.partition("@")[0]) == ("any", ADAPTER)
        one.die()
        if other != "same":
            refused = await two.ask("GET", path_of(first), last_event_id=id_of(first.events[-1]))
            code, param = ("model_not_found", "model") if other == "gone" else ("events_gone", "model")
            assert (refused.error["code"], refused.error["param"], f"'{ADAPTER}'" in refused.error["message"]) == (
                code,
                param,
                True,
            )
            assert two.worker.submits == []
            assert shared.records[first.headers["x-stream-id"]][1] == "", "another gateway may have it"
            return
        again = two.open("GET", path_of(first), last_event_id=id_of(first.events[-1]))
        (submit,) = await two.worker.wait_submits(1)
        assert submit.adapter == one.worker.submits[0].adapter
        two.worker.finish(submit.stream, "one and all")
        await again.ended.wait()
        assert text_of(again) == " and all"
