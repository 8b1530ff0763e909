"""Stored responses through the `openai` client and bare HTTP: retrieve, list, delete, and who may."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import openai
import pytest

from gateway.responses.service import ResponseService
from gateway.responses.store.stored import StoredResponse, StoreUnavailable
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from tests.gateway.harness.serving import serving
from tests.gateway.responses.rendering import REPORT
from tests.gateway.responses.scripts import Script, client_of, scripted

pytestmark = pytest.mark.anyio

CREATE: dict[str, Any] = {"model": "tiny", "input": "hi"}


async def test_a_response_is_retrieved_and_deleted() -> None:
    async with scripted("Hello", "Again") as (client, _):
        made = await client.responses.create(**CREATE)
        async with client.responses.stream(**CREATE) as stream:
            streamed = await stream.get_final_response()
        assert await client.responses.retrieve(made.id) == made
        assert (await client.responses.retrieve(streamed.id)).output_text == streamed.output_text
        assert (await client.responses.retrieve(made.id, include=["message.output_text.logprobs"])).id == made.id
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(made.id)
    assert (caught.value.code, caught.value.param) == ("response_not_found", "id")


@pytest.mark.parametrize("setting", ["memory", "none"])
async def test_what_is_not_to_be_stored_is_not(setting: str) -> None:
    async with scripted("Hello", store=setting) as (client, _):
        options = {"store": False} if setting == "memory" else {}
        made = await client.responses.create(**CREATE, **options)
        assert made.to_dict()["store"] is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_response_whose_client_left_is_not_stored() -> None:
    async with scripted("Hel…") as (client, script):
        stream = await client.responses.create(**CREATE, stream=True)
        first: Any = await anext(stream)
        await stream.close()
        await script.served.worker.wait_cancels(1)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.response.id)


async def test_a_response_that_failed_in_its_stream_is_stored_with_its_error() -> None:
    async with scripted("Hel…") as (client, script):
        stream = await client.responses.create(**CREATE, stream=True)
        (submit,) = script.served.worker.submits
        async for event in stream:
            if event.type == "response.output_text.delta":
                script.served.worker.fail(submit.stream, ErrorCode.DEADLINE, "too late")
            if event.type == "response.failed":
                found = await client.responses.retrieve(event.response.id)
    assert found.error is not None
    assert (found.status, found.error.message, found.output_text) == ("failed", "too late", "Hel")


async def test_input_items_have_the_conversation_in_pages() -> None:
    async with scripted("One", "Two") as (client, _):
        first = await client.responses.create(model="tiny", input="1", instructions="Not an item.")
        second = await client.responses.create(
            model="tiny", input=[{"role": "user", "content": "2", "type": "message"}], previous_response_id=first.id
        )
        newest = await client.responses.input_items.list(second.id)
        pages = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]
        page = await client.responses.input_items.list(second.id, order="asc", limit=2)
    texts = [item.content[0].text for item in pages]
    assert texts == ["1", "One", "2"]
    assert [item.id for item in newest.data] == [item.id for item in reversed(pages)]
    assert (page.has_more, page.last_id) == (True, pages[1].id)
    assert len({item.id for item in pages}) == 3


async def test_a_conversation_is_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    decode = ResponseService.input_items

    def noted(self: ResponseService, conversation: Sequence[StoredResponse]) -> list[msgspec.Raw]:
        threads.append(threading.current_thread())
        return decode(self, conversation)

    monkeypatch.setattr(ResponseService, "input_items", noted)
    async with scripted("One") as (client, _):
        made = await client.responses.create(**CREATE)
        page = await client.responses.input_items.list(made.id)
    assert len(page.data) == 1
    assert threads
    assert threading.main_thread() not in threads


async def test_one_key_never_sees_what_another_key_stored(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("ann:aaaaaaaaaaaaaaaa\nbob:bbbbbbbbbbbbbbbb\n")
    async with serving(api_keys_file=str(keys)) as served, client_of(served, "a" * 16) as ann:
        script = Script(served, "Hello", "Again")
        async with script.running():
            made = await ann.responses.create(**CREATE)
            item: Any = {"type": "item_reference", "id": made.output[0].id}
            async with client_of(served, "b" * 16) as bob:
                for refused in (
                    bob.responses.retrieve(made.id),
                    bob.responses.delete(made.id),
                    bob.responses.cancel(made.id),
                    bob.responses.input_items.list(made.id),
                    bob.responses.create(**CREATE, previous_response_id=made.id),
                    bob.responses.create(model="tiny", input=[item]),
                ):
                    with pytest.raises(openai.NotFoundError) as caught:
                        await refused
                    assert caught.value.code == "response_not_found"
            again = await ann.responses.create(**CREATE, previous_response_id=made.id)
    assert again.output_text == "Again"


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "param"),
    [
        ("GET", "/v1/responses/resp_1", 404, "response_not_found", "id"),
        ("GET", "/v1/responses/resp_1?stream=true", 404, "response_not_found", "id"),
        ("GET", "/v1/responses/resp_1?starting_after=1", 400, "invalid_request", "starting_after"),
        ("GET", "/v1/responses/resp_1?stream=true&starting_after=x", 400, "invalid_request", "starting_after"),
        ("GET", "/v1/responses/resp_1?stream=1", 400, "invalid_request", "stream"),
        ("GET", "/v1/responses/resp_1?stream=true&stream=true", 400, "invalid_request", "stream"),
        ("GET", "/v1/responses/resp_1?include_obfuscation=true", 400, "invalid_request", "include_obfuscation"),
        ("GET", "/v1/responses/resp_1?include=x", 400, "invalid_request", "include"),
        ("GET", "/v1/responses/resp_1?more=1", 400, "unknown_parameter", "more"),
        ("GET", "/v1/responses/resp_1/input_items?limit=101", 400, "invalid_request", "limit"),
        ("GET", "/v1/responses/resp_1/input_items?limit=0", 400, "invalid_request", "limit"),
        ("GET", "/v1/responses/resp_1/input_items?order=up", 400, "invalid_request", "order"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "response_not_found", "id"),
        ("DELETE", "/v1/responses/resp_1", 404, "response_not_found", "id"),
        ("DELETE", "/v1/responses/resp_1?x=1", 400, "unknown_parameter", "x"),
        ("PUT", "/v1/responses/resp_1", 405, "method_not_allowed", None),
        ("HEAD", "/v1/responses/resp_1", 405, None, None),
        ("GET", "/v1/responses/resp_1/other", 404, "not_found", None),
        ("GET", "/v1/responses", 405, "method_not_allowed", None),
        ("GET", "/v1/responses/%00%ff", 404, "response_not_found", "id"),
    ],
)
async def test_a_refusal_is_typed(method: str, path: str, status: int, code: str | None, param: str | None) -> None:
    async with serving() as served:
        answer = await served.client.request(method, path)
    assert answer.status_code == status
    assert len(answer.headers.get_list("x-request-id")) == 1
    if code is not None:
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, param)


async def test_only_responses_of_the_background_are_read_as_a_stream_or_cancelled() -> None:
    async with scripted("Hello") as (client, _):
        made = await client.responses.create(**CREATE)
        with pytest.raises(openai.BadRequestError) as streamed:
            await client.responses.retrieve(made.id, stream=True)
        with pytest.raises(openai.BadRequestError) as cancelled:
            await client.responses.cancel(made.id)
    assert streamed.value.param == "stream"
    assert cancelled.value.param == "id"


async def test_stored_responses_survive_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"
    async with scripted("One", store=store) as (client, _):
        first = await client.responses.create(model="tiny", input="1")
    async with scripted("Two", store=store) as (client, script):
        assert (await client.responses.retrieve(first.id)).output_text == "One"
        second = await client.responses.create(model="tiny", input="2", previous_response_id=first.id)
        assert [each.content for each in script.input().messages] == ["1", "One", "2"]
    assert second.output_text == "Two"


async def test_a_store_that_fails_is_a_503_and_its_answers_are_delivered(tmp_path: Path) -> None:
    async with scripted("One", "Two", store=f"sqlite:{tmp_path}/store.db") as (client, script):
        store: Any = script.served.responses.store
        store._file.execute("PRAGMA query_only=1")
        made = await client.responses.create(**CREATE)
        store._file.execute("PRAGMA query_only=0")
        store._file.execute("DROP TABLE responses")
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.retrieve(made.id)
    assert made.output_text == "One"
    assert (caught.value.status_code, caught.value.code) == (503, "unavailable")
    assert "retry-after" in caught.value.response.headers


def test_a_store_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(StoreUnavailable, match="not a database"):
        ResponseService(GatewaySettings(store=f"sqlite:{tmp_path}/store.db"))


async def test_a_conversation_larger_than_a_body_is_refused() -> None:
    async with scripted("One", max_body_bytes=4096) as (client, script):
        first = await client.responses.create(model="tiny", input="x" * 3000)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="tiny", input="2", previous_response_id=first.id)
        assert script.served.router.bodies.held == 0
    assert caught.value.param == "previous_response_id"


async def test_tools_that_responses_repeat_do_not_count_as_conversation() -> None:
    tool: Any = {"type": "function", "name": "f", "description": "x" * 3000, "parameters": {}, "strict": False}
    async with scripted(*["One"] * 4, max_body_bytes=8192) as (client, script):
        previous: str | None = None
        for number in range(4):
            made = await client.responses.create(
                model="tiny", input=str(number), tools=[tool], previous_response_id=previous
            )
            previous = made.id
        assert len(script.input().messages) == 7


async def test_a_conversation_counts_for_the_bodies_that_the_server_holds() -> None:
    async with scripted("One", max_body_bytes=4096, max_total_body_bytes=4096) as (client, script):
        first = await client.responses.create(model="tiny", input="x" * 1000)
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="tiny", input="x" * 2000, previous_response_id=first.id)
        assert script.served.router.bodies.held == 0


async def test_a_dropped_response_ends_its_conversation_with_a_404() -> None:
    async with scripted("One", "Two", "Three") as (client, _):
        first = await client.responses.create(model="tiny", input="1")
        second = await client.responses.create(model="tiny", input="2", previous_response_id=first.id)
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model="tiny", input="3", previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"
    assert "earlier" in caught.value.message


async def test_the_memory_of_an_answer_counts_until_it_ends() -> None:
    """Unlike a chat's, the events of a response end with the whole of it."""
    async with scripted("Hel…", store="none") as (client, script):
        worker = script.served.worker
        stream = await client.responses.create(**CREATE, stream=True)
        (submit,) = worker.submits
        for token in range(3):
            worker.token(submit.stream, "x" * 1000, token)
            while (await anext(stream)).type != "response.output_text.delta":
                pass
        assert script.served.router.answers.held > 3000
        worker.finish(submit.stream)
        assert [event async for event in stream][-1].type == "response.completed"
        await script.served.until(lambda: script.served.router.answers.held == 0)


async def test_an_answer_over_its_bound_fails_though_it_is_read() -> None:
    async with scripted("Hel…", max_answer_bytes=1 << 20) as (client, script):
        worker = script.served.worker
        stream = await client.responses.create(**CREATE, stream=True)
        (submit,) = worker.submits
        last: Any = None
        for token in range(20):
            worker.token(submit.stream, "x" * 100_000, token)
            while (last := await anext(stream)).type not in ("response.output_text.delta", "response.failed"):
                pass
            if last.type == "response.failed":
                break
    assert last.type == "response.failed"
    assert "max_answer_bytes" in last.response.error.message
    assert "stream the answer" not in last.response.error.message


@pytest.mark.parametrize("background", [False, True], ids=["stream", "background"])
async def test_a_stream_of_too_many_log_probabilities_fails(background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of an answer may be unknown when its request comes; the last events repeat all log-probabilities."""
    monkeypatch.setattr("gateway.responses.answer.output.MAX_KEPT_LOGPROBS", 5)
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "background": background}
    async with scripted() as (client, script):
        worker = script.served.worker

        async def report() -> None:
            (submit,) = await worker.wait_submits(1)
            while not worker.cancels:
                worker.report(submit.stream, "Hi", REPORT)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(report)
            stream = await client.responses.create(model="tiny", input="hi", stream=True, **asked)
            last = [event async for event in stream][-1]
            await worker.wait_cancels(1)
        assert script.served.live == 0
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "set `max_output_tokens`" in last.response.error.message
