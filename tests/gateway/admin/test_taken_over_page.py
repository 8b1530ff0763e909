"""The page in a real browser while another gateway takes the port over."""

import os
import re
import signal

import anyio
import anyio.to_thread
import pytest
from playwright.async_api import expect

from tests.gateway.admin.browser import browsing, choose_settings, needs_browser, say
from tests.gateway.faults.cutting import breaking_way
from tests.gateway.fleet.succession import gateway, said, who, worker_of

pytestmark = [pytest.mark.anyio, needs_browser]

ANSWER = 300
"""Tokens, at 100 a second."""


@pytest.mark.exhaustive
async def test_the_chat_and_the_picture_go_on_with_the_new_gateway() -> None:
    """An answer that the old gateway has begun is resumed through the new one when its connection breaks."""
    with gateway() as old:
        port = int(said(old, "port").split()[1])
        said(old, "state ready")
        async with (
            breaking_way(port, b'"delta"', 0) as way,
            browsing(f"http://127.0.0.1:{way.port}/") as page,
        ):
            await expect(page.locator("#model")).to_have_value("tiny")
            worker = page.get_by_label("Worker w0", exact=True)
            await expect(worker).to_contain_text(f"pid {await worker_of(port)}")
            await choose_settings(page, temperature="0", max_tokens=str(ANSWER))
            await say(page, "hello")
            answer = page.locator(".assistant .markdown")
            await expect(answer).not_to_be_empty()
            held = await worker_of(port)
            os.kill(held, signal.SIGSTOP)  # the answer lasts until the other gateway has the port
            with gateway(port) as new:
                while await who(port) != new.pid:
                    pass
                await expect(worker).to_contain_text(f"pid {await worker_of(port)}")
                await expect(page.locator("#events")).to_contain_text(f"Another gateway, process {new.pid}, has taken")
                way.cuts = 1
                os.kill(held, signal.SIGCONT)
                await expect(page.locator(".assistant .note")).to_contain_text(f"{ANSWER} tokens")
                assert way.cuts == 0
                text = await answer.inner_text()
                await page.get_by_role("button", name="Regenerate").click()
                await expect(page.locator(".stream.mine")).to_have_count(1)
                await expect(page.locator(".assistant .note")).to_contain_text(re.compile(rf"^{ANSWER} tokens"))
                assert await answer.inner_text() == text
                await expect(page.locator(".error:visible")).to_have_count(0)
                assert await anyio.to_thread.run_sync(old.wait) == 0
                await page.close()
                new.terminate()
                assert await anyio.to_thread.run_sync(new.wait) == 0
