"""A person at the page: a real browser without a screen, which Playwright moves.

Debian has it as `chromium-headless-shell` or `chromium`. Where none is installed, tests that need it are skipped.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import ConsoleMessage, Error, Page, async_playwright, expect

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here")
WAIT_MS = 30_000
EXPECTED = "Failed to load resource"
"""The browser logs each response with an error, which the page shows as well."""


@asynccontextmanager
async def browsing(url: str, *, breaches: str = EXPECTED, **context: Any) -> AsyncIterator[Page]:
    """The page at `url` in a browser without history. `context` are options of `new_context`. At the end, the page must
    not have logged an error, such as an exception or a breach of its Content-Security-Policy, except for those that
    begin with `EXPECTED` or `breaches`."""
    expect.set_options(timeout=WAIT_MS)
    problems: list[str] = []

    def logged(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith((EXPECTED, breaches)):
            problems.append(message.text)

    def failed(error: Error) -> None:
        problems.append(str(error))

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = await browser.new_context(**context)
        opened.set_default_timeout(WAIT_MS)
        page = await opened.new_page()
        page.on("console", logged)
        page.on("pageerror", failed)
        await page.goto(url)
        yield page
        await browser.close()
    assert problems == []


async def say(page: Page, text: str) -> None:
    """Type a message, and send it with the keyboard."""
    await page.get_by_label("Message", exact=True).fill(text)
    await page.keyboard.press("Enter")


async def choose_settings(page: Page, **fields: str) -> None:
    """Fill in fields of the settings by the ids of their elements, without `s-`, and save them."""
    await page.get_by_role("button", name="Settings").first.click()
    for name, value in fields.items():
        await page.locator(f"#s-{name}").fill(value)
    await page.get_by_role("button", name="Save").click()
