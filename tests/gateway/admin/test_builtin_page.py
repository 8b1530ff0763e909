"""The page beside `baton serve` with its built-in model and two workers, one of which a person kills."""

import re

import pytest
from playwright.async_api import expect

from tests.cli.commands.test_serve import read_until, serving, url_of
from tests.gateway.admin.browser import browsing, choose_settings, needs_browser, say

pytestmark = [pytest.mark.anyio, needs_browser, pytest.mark.slow]

SERVE = ("-m", "cli", "serve", "--port", "0", "--workers", "2")
LONG_MS = 90_000


async def test_a_person_tries_what_the_page_proposes_and_kills_a_worker() -> None:
    with serving(SERVE, {"BATON_ADMIN_KEY": "admin"}) as server:
        async with browsing(url_of(read_until(server, "ready"))) as page:
            await expect(page.locator("#model")).to_have_value("baton-tiny")
            await expect(page.locator("#about-model")).to_contain_text("tool calls")
            await page.get_by_role("button", name="What is the capital of Japan?").click()
            await expect(page.locator(".assistant .markdown")).to_contain_text("Tokyo")
            await page.get_by_role("button", name="Regenerate").wait_for()
            await page.get_by_role("button", name="New", exact=True).click()
            await page.get_by_role("button", name="What's the weather like in Paris today?").click()
            await page.get_by_role("button", name="Send the result").click()
            await expect(page.locator(".assistant .markdown").last).to_have_text("It is sunny and 18 degrees in Paris.")
            await choose_settings(page, **{"admin-key": "admin"})
            await page.locator("#load-seconds").fill("4")
            await page.get_by_role("button", name="Start").click()
            await expect(page.locator(".stream.mine")).to_have_count(6)
            await page.get_by_label("Kill worker w0").click()
            await expect(page.locator("#n-restarts")).to_have_text("1")
            verdict = page.locator("#verdict")
            await expect(verdict).to_have_text(
                re.compile(r"\d+ answers complete, all the same text\."), timeout=LONG_MS
            )
            await page.get_by_role("button", name="New", exact=True).click()
            await say(page, "What is the capital of France?")
            await expect(page.locator(".assistant .markdown")).to_contain_text("Paris")
