"""Responses that are generated without their client: their states, their events, their bound and their end."""

import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import openai
import pytest

from gateway.generation.tenant import tenant_of
from gateway.responses.endpoints import current
from gateway.responses.store.stored import StoredResponse
from protocol.errors import ErrorCode
from protocol.events import Usage
from tests.gateway.harness.serving import serving
from tests.gateway.responses.scripts import Script, client_of, scripted

pytestmark = pytest.mark.anyio

CREATE: dict[str, Any] = {"model": "tiny", "input": "hi", "background": True}


async def ended(client: openai.AsyncOpenAI, script: Script, response: str) -> Any:
    """The response, once nothing generates it any more."""
    await script.served.responses.background.idle()
    return await client.responses.retrieve(response)


async def test_a_response_is_queued_then_in_progress_then_completed() -> None:
    async with scripted() as (client, script):
        worker = script.served.worker
        made = await client.responses.create(**CREATE)
        (submit,) = await worker.wait_submits(1)
        queued = await client.responses.retrieve(made.id)
        worker.token(submit.stream, "Hel", 1)
        while (under_way := await client.responses.retrieve(made.id)).status == "queued":
            pass
        with pytest.raises(openai.BadRequestError) as early:
            await client.responses.create(model="tiny", input="hi", previous_response_id=made.id)
        worker.finish(submit.stream, "lo", usage=Usage(3, 2))
        done = await ended(client, script, made.id)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert (queued.status, under_way.status) == ("queued", "in_progress")
    assert early.value.param == "previous_response_id"
    assert (done.status, done.output_text, done.usage.total_tokens) == ("completed", "Hello", 5)


async def test_a_chain_continues_a_response_of_the_background() -> None:
    async with scripted("One", "Two") as (client, script):
        first = await client.responses.create(**CREATE)
        await ended(client, script, first.id)
        second = await client.responses.create(model="tiny", input="2", previous_response_id=first.id)
    assert [each.content for each in script.input().messages] == ["hi", "One", "2"]
    assert second.output_text == "Two"


async def test_its_events_are_read_again_after_any_of_them() -> None:
    async with scripted("Hello") as (client, script):
        stream = await client.responses.create(**CREATE, stream=True)
        events = [event async for event in stream]
        response = events[0].response.id
        for after in range(len(events)):
            rest = await client.responses.retrieve(response, stream=True, starting_after=after)
            assert [event async for event in rest] == events[after + 1 :]
        again = await client.responses.retrieve(response, stream=True)
        assert [event async for event in again] == events
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.retrieve(response, stream=True, starting_after=len(events))
        assert caught.value.param == "starting_after"
        done = await ended(client, script, response)
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert done.output_text == "Hello"


async def test_it_goes_on_without_its_client_and_another_connection_reads_the_rest() -> None:
    async with scripted() as (client, script):
        worker = script.served.worker
        stream = await client.responses.create(**CREATE, stream=True)
        first: Any = await anext(stream)
        await stream.close()
        (submit,) = await worker.wait_submits(1)
        worker.token(submit.stream, "Hel", 1)
        rest = await client.responses.retrieve(first.response.id, stream=True, starting_after=0)
        while (await anext(rest)).type != "response.output_text.delta":
            pass
        worker.finish(submit.stream, "lo")
        last = [event async for event in rest][-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello"
    assert worker.cancels == []


async def test_it_continues_when_its_worker_dies() -> None:
    async with serving("a", "b") as served, client_of(served) as client:
        made = await client.responses.create(**CREATE)
        await served.until(lambda: any(worker.submits for worker in served.workers))
        first, other = sorted(served.workers, key=lambda worker: not worker.submits)
        first.token(first.submits[0].stream, "Hel", 1)
        first.die()
        (again,) = await other.wait_submits(1)
        other.finish(again.stream, "lo")
        await served.responses.background.idle()
        assert (await client.responses.retrieve(made.id)).output_text == "Hello"


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "in progress"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_it_is_cancelled(begun: bool, stream: bool) -> None:
    async with scripted() as (client, script):
        worker = script.served.worker
        if stream:
            reader = await client.responses.create(**CREATE, stream=True)
            response = (await anext(reader)).response.id
        else:
            response = (await client.responses.create(**CREATE)).id
        (submit,) = await worker.wait_submits(1)
        if begun:
            worker.token(submit.stream, "Hel", 1)
            while (await client.responses.retrieve(response)).status == "queued":
                pass
        cancelled = await client.responses.cancel(response)
        assert worker.cancels == [submit.stream]
        again = await client.responses.cancel(response)
        if stream:
            last: Any = [event async for event in reader][-1]
            assert (last.type, last.response.status) == ("response.failed", "cancelled")
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "Hel" if begun else "")
    assert again == cancelled


async def test_it_is_deleted_while_it_is_generated() -> None:
    async with scripted() as (client, script):
        made = await client.responses.create(**CREATE)
        (submit,) = await script.served.worker.wait_submits(1)
        await client.responses.delete(made.id)
        assert script.served.worker.cancels == [submit.stream]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_another_key_cannot_drop_its_events(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("ann:aaaaaaaaaaaaaaaa\nbob:bbbbbbbbbbbbbbbb\n")
    async with (
        serving(api_keys_file=str(keys)) as served,
        Script(served, "Hello").running(),
        client_of(served, "a" * 16) as ann,
        client_of(served, "b" * 16) as bob,
    ):
        events = [event async for event in await ann.responses.create(**CREATE, stream=True)]
        response = events[0].response.id
        with pytest.raises(openai.NotFoundError):
            await bob.responses.delete(response)
        again = await ann.responses.retrieve(response, stream=True)
        assert [event async for event in again] == events


async def test_a_failure_is_its_last_state() -> None:
    async with scripted() as (client, script):
        made = await client.responses.create(**CREATE)
        (submit,) = await script.served.worker.wait_submits(1)
        script.served.worker.fail(submit.stream, ErrorCode.CONTEXT, "too long", "input")
        done = await ended(client, script, made.id)
    assert done.status == "failed"
    assert (done.error.code, done.error.message) == ("invalid_prompt", "too long")


async def test_an_end_of_the_gateway_is_its_last_state(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"
    async with scripted(store=store) as (client, script):
        made = await client.responses.create(**CREATE)
        await script.served.worker.wait_submits(1)
        script.served.router.admission.drain_nowait()
        script.served.router.ends.fail_all("the gateway is shutting down")
        await script.served.responses.background.idle()
    async with scripted(store=store) as (client, _):
        done = await client.responses.retrieve(made.id)
    assert done.error is not None
    assert (done.status, done.error.code, done.error.message) == (
        "failed",
        "server_error",
        "the gateway is shutting down",
    )


async def test_a_response_of_a_killed_gateway_fails_after_its_deadline(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"
    async with scripted(store=store) as (client, script):
        made = await client.responses.create(**CREATE)
        await script.served.worker.wait_submits(1)
        kept: Any = script.served.responses.store
        while await kept.get(tenant_of(b"none", ""), made.id) is None:
            pass
        (status,) = kept._file.execute("SELECT status FROM responses").fetchone()
    assert status == "queued"
    stored = StoredResponse(
        id="r", owner="", created=1, status="queued", deadline=1, response=b'{"status":"queued"}', inputs=b"[]"
    )
    assert msgspec.json.decode(current(stored))["status"] == "failed"
    later = msgspec.structs.replace(stored, deadline=int(time.time()) + 60)
    assert msgspec.json.decode(current(later)) == {"status": "queued"}


async def test_their_number_is_bounded() -> None:
    async with scripted(max_background_responses=2) as (client, script):
        for _ in range(2):
            await client.responses.create(**CREATE)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.responses.create(**CREATE)
        for submit in await script.served.worker.wait_submits(2):
            script.served.worker.finish(submit.stream, "x")
        await script.served.responses.background.idle()
        await client.responses.create(**CREATE)
    assert caught.value.param == "background"
    assert "retry-after" in caught.value.response.headers


async def test_the_events_of_the_oldest_response_give_way() -> None:
    async with scripted("a", "b", max_background_responses=1) as (client, script):
        made = []
        for _ in range(2):
            stream = await client.responses.create(**CREATE, stream=True)
            made.append((await anext(stream)).response.id)
            await script.served.responses.background.idle()
        with pytest.raises(openai.BadRequestError):
            await client.responses.retrieve(made[0], stream=True)
        assert (await client.responses.retrieve(made[0])).output_text == "a"
        rest = await client.responses.retrieve(made[1], stream=True)
        assert [event async for event in rest][-1].type == "response.completed"


async def test_events_over_the_bound_are_gone() -> None:
    async with scripted("Hello", resume_buffer_bytes=500) as (client, script):
        stream = await client.responses.create(**CREATE, stream=True)
        response = (await anext(stream)).response.id
        await script.served.responses.background.idle()
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.retrieve(response, stream=True)
    assert (caught.value.status_code, caught.value.code) == (410, "events_gone")


@pytest.mark.parametrize(
    ("fields", "settings", "param"),
    [
        ({"store": False}, {}, "background"),
        ({}, {"store": "none"}, "background"),
        ({}, {"max_background_responses": 0}, "background"),
        ({"stream": True, "stream_options": {"resume_s": 5}}, {}, "stream_options.resume_s"),
    ],
)
async def test_what_cannot_be_generated_in_the_background(
    fields: dict[str, Any], settings: dict[str, Any], param: str
) -> None:
    async with scripted(**settings) as (client, script):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**CREATE, extra_body=fields)
        assert script.served.live == 0
    assert caught.value.param == param


async def test_a_reader_that_waits_gets_comments() -> None:
    async with scripted(waiting_comment_s=0.01) as (_, script), anyio.create_task_group() as group:
        async with script.served.client.stream("POST", "/v1/responses", json=CREATE | {"stream": True}) as answer:
            text = ""
            async for part in answer.aiter_text():
                text += part
                if ": waiting" in text:
                    break
        group.cancel_scope.cancel()
    assert text.startswith("event: response.created")


async def test_a_bug_ends_its_response_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted("Hello", "Hello") as (client, script):
        store: Any = script.served.responses.store
        put = store.put

        async def fail_first(response: StoredResponse) -> bool:
            monkeypatch.setattr(store, "put", put)
            raise RuntimeError("a bug")

        monkeypatch.setattr(store, "put", fail_first)
        lost = await client.responses.create(**CREATE, stream=True)
        assert [event.type async for event in lost] == ["response.created", "response.queued", "error"]
        made = await client.responses.create(**CREATE)
        assert (await ended(client, script, made.id)).output_text == "Hello"
