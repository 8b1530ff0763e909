"""The chat of the page in a real browser, beside a worker whose tokens the test sends."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from playwright.async_api import FilePayload, Page, expect

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Capabilities, Delta, Ready, ReasoningSegment, Step, TextSegment, ToolCallSegment, Usage
from protocol.request import ChatInput, ImagePlace, Message
from tests.gateway.admin.browser import browsing, choose_settings, needs_browser, say
from tests.gateway.faults.cutting import Way, breaking_way
from tests.gateway.harness.serving import Served, serving
from tests.gateway.images.files import PNG
from tests.gateway.images.sites import seeing

pytestmark = [pytest.mark.anyio, needs_browser]

WEATHER = json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}])


@asynccontextmanager
async def chatting(breaks: int = 0, **settings: Any) -> AsyncIterator[tuple[Served, Page, Way]]:
    """A browser at the page of a gateway, and the way between them, which breaks so often within an answer."""
    async with (
        serving(**settings) as served,
        breaking_way(served.port, b'"lo ', breaks) as way,
        browsing(f"http://127.0.0.1:{way.port}/") as page,
    ):
        await expect(page.locator("#model")).to_have_value("tiny")
        yield served, page, way


def messages(submit: Submit) -> tuple[Message, ...]:
    assert isinstance(submit.input, ChatInput)
    return submit.input.messages


async def reply(served: Served, number: int, *pieces: str) -> Submit:
    """Answer the request with this number, from 1."""
    submit = (await served.worker.wait_submits(number))[-1]
    for token, piece in enumerate(pieces):
        served.worker.token(submit.stream, piece, token)
        await anyio.sleep(0.01)
    served.worker.finish(submit.stream, usage=Usage(3, len(pieces)))
    return submit


@pytest.mark.parametrize("breaks", [0, 2])
async def test_a_person_chats(breaks: int) -> None:
    """However often the connection breaks in the middle of the answer: the page goes on by itself."""
    async with chatting(breaks) as (served, page, way):
        await say(page, "hello <b>")
        submit = await reply(served, 1, "Hel", "lo ", "<i>you</i>")
        await expect(page.locator(".user .bubble")).to_have_text("hello <b>")
        await expect(page.locator(".assistant .markdown")).to_have_text("Hello <i>you</i>")
        await expect(page.locator(".assistant .note")).to_contain_text("3 tokens")
        await expect(page.locator(".error:visible")).to_have_count(0)
    assert way.cuts == 0
    assert messages(submit) == (Message("user", "hello <b>"),)
    assert len(served.worker.submits) == 1


@pytest.mark.parametrize("way_to_stop", ["button", "Escape"])
async def test_stopping_an_answer_cancels_it(way_to_stop: str) -> None:
    """Though the page asks for its streams to be kept, and the connection alone would not end this one."""
    async with chatting() as (served, page, _):
        await say(page, "hello")
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hello ", 1)
        await expect(page.locator(".assistant .markdown")).to_have_text("Hello")
        if way_to_stop == "button":
            await page.get_by_role("button", name="Stop").first.click()
        else:
            await page.keyboard.press("Escape")
        assert await served.worker.wait_cancels(1) == [submit.stream]
        await expect(page.locator(".assistant .note")).to_contain_text("stopped")
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert served.live == 0


async def test_the_settings_are_sent_along() -> None:
    async with chatting() as (served, page, _):
        await choose_settings(page, system="Be brief.", temperature="0.5", top_p="0.25", max_tokens="7", seed="11")
        await say(page, "hello")
        submit = await reply(served, 1, "Hi")
        await page.reload()
        await say(page, "again")
        later = await reply(served, 2, "Hi")
    assert messages(submit) == (Message("system", "Be brief."), Message("user", "hello"))
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, submit.limits.max_tokens) == (0.5, 0.25, 11, 7)
    assert later.sampling == sampling, "they are kept"


async def test_an_answer_is_regenerated_and_a_question_edited() -> None:
    async with chatting() as (served, page, _):
        await say(page, "one")
        await reply(served, 1, "first")
        await say(page, "two")
        await reply(served, 2, "second")
        await page.get_by_role("button", name="Regenerate").click()
        again = await reply(served, 3, "another second")
        await expect(page.locator(".assistant .markdown")).to_have_text(["first", "another second"])
        await page.locator(".user").first.hover()
        await page.get_by_role("button", name="Edit").first.click()
        await page.get_by_label("Edit your message").fill("one, edited")
        await page.keyboard.press("Enter")
        edited = await reply(served, 4, "third")
        await expect(page.locator(".user .bubble")).to_have_text(["one, edited"])
        await expect(page.locator(".assistant .markdown")).to_have_text(["third"])
    assert [each.content for each in messages(again)] == ["one", "first", "two"]
    assert [each.content for each in messages(edited)] == ["one, edited"]


async def test_a_browser_that_has_no_room_for_chats_and_settings_shows_answers() -> None:
    full = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };"
    async with chatting() as (served, page, _):
        await page.add_init_script(full)
        await page.reload()
        await expect(page.locator("#model")).to_have_value("tiny")
        await say(page, "hello")
        await reply(served, 1, "yes")
        await expect(page.locator(".assistant .markdown")).to_have_text("yes")
        await expect(page.locator(".error:visible")).to_have_count(0)


async def test_a_browser_that_refuses_its_storage_keeps_chats_and_keys_until_the_page_is_closed() -> None:
    refuse = """for (const name of ['localStorage', 'sessionStorage'])
      Object.defineProperty(globalThis, name, { get() { throw new DOMException('denied', 'SecurityError'); } });"""
    async with chatting() as (served, page, _):
        await expect(page.locator("#not-kept")).to_be_hidden()
        await page.add_init_script(refuse)
        await page.reload()
        await expect(page.locator("#model")).to_have_value("tiny")
        await expect(page.locator("#not-kept")).to_contain_text("gone when you close or reload the page")
        await choose_settings(page, temperature="0.5", **{"api-key": "mine"})
        await say(page, "hello")
        first = await reply(served, 1, "yes")
        await expect(page.locator(".assistant .markdown")).to_have_text("yes")
        await page.keyboard.press("Alt+n")
        await say(page, "again")
        await reply(served, 2, "no")
        await page.keyboard.press("Alt+c")
        await expect(page.locator("#chat-list li")).to_have_count(2)
        await page.get_by_role("button", name="hello").first.click()
        await expect(page.locator(".assistant .markdown")).to_have_text("yes")
        await page.get_by_role("button", name="Settings").first.click()
        await expect(page.locator("#s-api-key")).to_have_value("mine")
        await page.locator("#settings [data-close]").click()
        await page.reload()
        await page.keyboard.press("Alt+c")
        await expect(page.locator("#no-chats")).to_be_visible()
    assert first.sampling.temperature == 0.5


async def test_chats_are_kept_in_the_browser() -> None:
    async with chatting() as (served, page, _):
        await say(page, "the first chat")
        await reply(served, 1, "yes")
        await expect(page.locator(".assistant .note")).to_contain_text("1 token")
        await page.reload()
        await page.keyboard.press("Alt+c")
        await page.get_by_role("button", name="the first chat").first.click()
        await expect(page.locator(".assistant .markdown")).to_have_text("yes")
        await say(page, "more")
        submit = await reply(served, 2, "and more")
        await expect(page.locator(".assistant .note").last).to_contain_text("1 token")
        await page.keyboard.press("Alt+n")
        await expect(page.locator(".assistant")).to_have_count(0)
        await page.keyboard.press("Alt+c")
        await expect(page.locator("#chat-list li")).to_have_count(1)
        await page.get_by_role("button", name="Delete all chats").click()
        await expect(page.locator("#no-chats")).to_be_visible()
        assert await page.evaluate("Object.keys(localStorage)") == ["baton.settings"]
        await page.locator("#chats [data-close]").click()
        await say(page, "a chat that is deleted while it is answered")
        (*_, submit_3) = await served.worker.wait_submits(3)
        await page.keyboard.press("Alt+c")
        await page.get_by_role("button", name="Delete all chats").click()
        assert await served.worker.wait_cancels(1) == [submit_3.stream]
        await expect(page.get_by_role("button", name="Send", exact=True)).to_have_count(1)
        assert await page.evaluate("Object.keys(localStorage)") == ["baton.settings"]
    assert [each.content for each in messages(submit)] == ["the first chat", "yes", "more"]


@pytest.mark.parametrize(("count", "size", "left"), [(50, 10, 50), (60, 10, 50), (4, 600_000, 3)])
async def test_the_chats_that_are_kept_are_bounded(count: int, size: int, left: int) -> None:
    """In number, and in characters: the oldest are dropped first."""
    async with chatting() as (_, page, _):
        kept = await page.evaluate(
            """async ([count, size]) => {
                const history = await import("/page/history.js");
                for (let number = 0; number < count; number++) {
                    const messages = [{ role: "user", content: "x".repeat(size) }];
                    history.keep({ ...history.newChat(), title: `${number}`, messages });
                    await new Promise((go) => setTimeout(go, 2));
                }
                return history.chats().map(({ title }) => title);
            }""",
            [count, size],
        )
        assert kept == [str(number) for number in range(count - 1, count - 1 - left, -1)]
        too_large = (
            "import('/page/history.js').then((history) => history.keep({ id: 'x', messages: ['x'.repeat(2e6)] }))"
        )
        assert await page.evaluate(too_large) is False


async def test_the_key_is_asked_for_and_kept_for_the_tab() -> None:
    async with serving(api_key="secret") as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        await expect(page.locator("#problem")).to_contain_text("invalid_api_key")
        await expect(page.locator("#problem")).to_contain_text("Enter the server's API key")
        await choose_settings(page, **{"api-key": "wrong"})
        await expect(page.locator("#problem")).to_contain_text("invalid_api_key")
        await choose_settings(page, **{"api-key": "secret"})
        await expect(page.locator("#model")).to_have_value("tiny")
        await expect(page.locator("#problem")).to_be_hidden()
        await expect(page.get_by_label("Worker w0", exact=True)).to_be_visible()
        await say(page, "hello")
        await reply(served, 1, "Hi")
        await expect(page.locator(".assistant .markdown")).to_have_text("Hi")
        assert "secret" not in await page.evaluate("JSON.stringify(localStorage)")
        await page.reload()
        await expect(page.locator("#model")).to_have_value("tiny")


async def test_an_error_is_shown_with_its_code_and_what_to_do() -> None:
    async with chatting() as (served, page, _):
        await say(page, "hello")
        (submit,) = await served.worker.wait_submits(1)
        served.worker.fail(submit.stream, ErrorCode.CONTEXT, "the prompt is too long")
        error = page.locator(".assistant .error")
        await expect(error).to_contain_text("context_length_exceeded")
        await expect(error).to_contain_text("the prompt is too long")
        await expect(error).to_contain_text("Start a new chat")
        await say(page, "shorter")
        submit = await reply(served, 2, "Hi")
    assert [each.content for each in messages(submit)] == ["shorter"], "a question without an answer is not sent again"


async def test_reasoning_and_calls_are_folded_and_a_person_gives_the_result() -> None:
    async with chatting() as (served, page, _):
        worker = served.worker
        able = Ready(Capabilities(chat=True, tools=True, reasoning=True), device="cpu-0")
        worker.change(ready=able)
        await choose_settings(page, tools=WEATHER)
        await say(page, "Paris?")
        (submit,) = await worker.wait_submits(1)
        segments = (
            ReasoningSegment("I need the weather."),
            TextSegment("Let me look."),
            ToolCallSegment(0, "get_weather", '{"city": "Paris"}'),
        )
        worker.say(Step((Delta(submit.stream, (1, 2, 3), segments=segments),), worker.status.gauges))
        worker.finish(submit.stream, reason="tool_calls", usage=Usage(3, 3))
        await expect(page.locator(".reasoning")).not_to_have_attribute("open", "")
        await expect(page.locator(".reasoning pre")).to_have_text("I need the weather.")
        await expect(page.locator(".assistant .markdown")).to_have_text("Let me look.")
        await expect(page.locator(".call summary")).to_have_text("Calls get_weather")
        await expect(page.locator(".call pre")).to_contain_text('"city": "Paris"')
        result = page.get_by_label("Result of get_weather")
        assert json.loads(await result.input_value()) == {"temperature": 18, "condition": "sunny"}
        await result.fill("rainy")
        await page.get_by_role("button", name="Send the result").click()
        later = await reply(served, 2, "It rains.")
        await expect(page.locator(".assistant .markdown").last).to_have_text("It rains.")
    question, call, told = messages(later)
    assert question.content == "Paris?"
    assert [(each.name, json.loads(each.arguments)) for each in call.tool_calls] == [("get_weather", {"city": "Paris"})]
    assert (told.role, told.content, told.tool_call_id) == ("tool", "rainy", call.tool_calls[0].id)


async def test_an_answer_and_a_block_of_code_are_copied() -> None:
    async with chatting() as (served, page, _):
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await say(page, "code")
        await reply(served, 1, "Here:\n```py\nprint(1)\n", "print(2)\n```\nDone.")
        await page.get_by_label("Copy this code").click()
        assert await page.evaluate("navigator.clipboard.readText()") == "print(1)\nprint(2)"
        await page.get_by_label("Copy this answer").click()
        assert await page.evaluate("navigator.clipboard.readText()") == "Here:\n```py\nprint(1)\nprint(2)\n```\nDone."


async def test_the_examples_are_those_of_the_model() -> None:
    async with chatting() as (served, page, _):
        example = page.locator(".tries button").first
        text = (await example.inner_text()).strip()
        await example.click()
        submit = await reply(served, 1, "Because.")
        await expect(page.locator(".assistant .markdown")).to_have_text("Because.")
    assert [each.content for each in messages(submit)] == [text]


async def test_images_are_chosen_dropped_and_removed_and_sent_with_the_message() -> None:
    files: list[FilePayload] = [{"name": name, "mimeType": "image/png", "buffer": PNG} for name in ("a.png", "b.png")]
    drop = """([name, kind, size]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(size)], name, { type: kind }));
      document.querySelector('#chat').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }));
    }"""
    async with chatting(make=seeing) as (served, page, _):
        await page.locator("#image-file").set_input_files(files)
        await expect(page.locator("#images img")).to_have_count(2)
        await page.get_by_role("button", name="Remove image 2").click()
        await expect(page.locator("#images img")).to_have_count(1)
        await page.evaluate(drop, ["c.svg", "image/svg+xml", 10])
        await expect(page.locator("#image-problem")).to_contain_text("c.svg is no PNG, JPEG, WebP or GIF file")
        await page.evaluate(drop, ["d.png", "image/png", 12 << 20])
        await expect(page.locator("#image-problem")).to_contain_text("12.0 are allowed")
        await say(page, "What is this?")
        submit = await reply(served, 1, "A dog.")
        await expect(page.locator(".user .bubble img")).to_have_count(1)
        await expect(page.locator("#images img")).to_have_count(0)
        await say(page, "Sure?")
        again = await reply(served, 2, "Yes.")
        await page.reload()
        await page.get_by_role("button", name="Chats").click()
        await page.locator("#chat-list button").first.click()
        await expect(page.locator(".user .bubble img")).to_have_count(1)
        assert await page.locator(".user .bubble img").evaluate("each => each.naturalWidth") == 5
    for each in (submit, again):
        assert isinstance(each.input, ChatInput)
        assert [image.data for image in each.input.images] == [PNG]
        assert messages(each)[0] == Message("user", "What is this?", images=(ImagePlace(0, 0),))
