"""The picture of the system in a real browser, beside real worker processes, which a person kills from the page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Page, expect

from actors.supervision.worker import WorkerState
from tests.gateway.admin.browser import browsing, choose_settings, needs_browser, say
from tests.gateway.harness.real import Real, launch, real_gateway

pytestmark = [pytest.mark.anyio, needs_browser]

KEY = "the-admin-key"
MODEL = "tiny"


@asynccontextmanager
async def watching(rate: float = 60.0, slots: int = 4, **settings: Any) -> AsyncIterator[tuple[Real, Page]]:
    launches = [launch(name, slots=slots, rate=rate) for name in ("w0", "w1")]
    async with (
        real_gateway(*launches, admin_key=KEY, **settings) as real,
        browsing(f"http://127.0.0.1:{real.port}/") as page,
    ):
        if "api_key" not in settings:
            await expect(page.locator("#model")).to_have_value(MODEL)
        yield real, page


def chat(content: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}


async def undisturbed(real: Real, body: dict[str, Any]) -> str:
    answer = (await real.client.post("/v1/chat/completions", json=body)).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


@pytest.mark.exhaustive
async def test_a_killed_workers_streams_move_to_the_other_one_and_answer_with_the_same_tokens() -> None:
    async with watching(routing="least-loaded") as (real, page):  # the worker that had the prompt before gets it again
        expected = await undisturbed(real, chat("tell me", 300))
        await choose_settings(page, **{"admin-key": KEY, "temperature": "0", "max_tokens": "300"})
        await say(page, "tell me")
        stream = page.locator(".stream.mine")
        await expect(stream).to_have_attribute("data-worker", "w0")
        await expect(page.get_by_label("Worker w0", exact=True)).to_contain_text("1 of 4 slots")
        before = await stream.bounding_box()
        first = real.status().pid
        await page.get_by_label("Kill worker w0").click()
        await expect(stream).to_have_attribute("data-worker", "w1")
        await expect(stream).to_have_attribute("data-moves", "1")
        assert await stream.bounding_box() != before
        await expect(page.locator("#events")).to_contain_text(f"You killed worker w0, process {first}.")
        await expect(page.locator("#events")).to_contain_text("1 stream moved from w0 to w1.")
        await expect(page.locator("#n-restarts")).to_have_text("1")
        await expect(page.locator(".assistant footer button").first).to_be_visible()
        shown = await page.locator(".assistant .markdown").inner_text()
        await expect(page.locator("#n-replays")).to_have_text("1")
        await expect(page.locator(".stream")).to_have_count(0)
        await expect(page.locator(".error:visible")).to_have_count(0)
        await real.until(lambda: real.status().state is WorkerState.READY and real.status().pid != first)
    assert shown == expected
    assert len(expected) == 300


@pytest.mark.exhaustive
async def test_streams_fill_the_slots_wait_in_the_queue_and_are_all_the_same() -> None:
    async with watching(rate=400.0, slots=2) as (_, page):
        await choose_settings(page, **{"admin-key": KEY})
        await page.locator("#load-count").fill("9")
        await page.locator("#load-seconds").fill("1")
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator("#n-streams")).to_have_text("9")
        await expect(page.get_by_label("Worker w0", exact=True)).to_contain_text("2 of 2 slots")
        await expect(page.get_by_label("Worker w1", exact=True)).to_contain_text("2 of 2 slots")
        waiting = await page.locator("#n-waiting").inner_text()
        assert int(waiting) > 0
        await expect(page.locator("#queue .cell")).to_have_count(int(waiting))
        assert await page.locator(".stream.mine").count() == 9
        await page.get_by_label("Kill worker w1").click()
        await expect(page.locator("#verdict")).to_have_text("9 answers complete, all the same text.", timeout=60_000)
        assert float(await page.locator("#n-rate").inner_text()) >= 0


@pytest.mark.parametrize("key", ["", "wrong", "the-api-key"])
async def test_nobody_kills_without_the_admin_key(key: str) -> None:
    async with watching(api_key="the-api-key") as (real, page):
        pid = real.status().pid
        await choose_settings(page, **{"api-key": "the-api-key", "admin-key": key})
        await page.get_by_label("Kill worker w0").click()
        await expect(page.locator("#live-problem")).to_contain_text("invalid_api_key")
        assert real.status().pid == pid
        assert real.status().restarts == 0


async def test_the_picture_comes_back_when_the_server_does() -> None:
    async with watching() as (_, page):
        await page.route("**/admin/live", lambda route: route.abort("connectionrefused"))
        await page.reload()
        await expect(page.locator("#live-problem")).to_contain_text("The server cannot be reached.")
        await expect(page.get_by_label("Worker w1", exact=True)).to_have_count(0)
        await page.unroute("**/admin/live")
        await expect(page.get_by_label("Worker w1", exact=True)).to_be_visible()
        await expect(page.locator("#live-problem")).to_be_hidden()
