"""The pictures of the page and of `baton top` in `docs/images/`: `python -m tests.docs.screenshots` takes them.

It serves the built-in model on a free port with two workers, chats and kills a worker in a real browser, and takes less
than a minute. The PNG files have 128 colours, which keeps them small.
"""

import io
import re
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from rich.console import Console

from cli.client.administration import Administration
from cli.client.load_sample import LoadChange, take_sample
from cli.config.settings import Settings
from cli.terminal.top_view import top_view
from tests.cli.commands.test_serve import read_until, serving, url_of
from tests.gateway.admin.browser import BROWSER

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 150 * 1024
COLOURS = 128
ADMIN_KEY = "for-the-pictures"
SERVE = ("-m", "cli", "serve", "--port", "0", "--workers", "2", "--max-batch-size", "8")
QUESTION = "What is the capital of Japan?"
TOOL_QUESTION = "What's the weather like in Paris today?"
BEGUN = """() => {
    const streams = [...document.querySelectorAll(".stream[data-worker=w0]:not(.ended)")];
    return streams.length >= 3 && streams.every(({ textContent }) => Number(textContent) < 400);
}"""
WIDE = {"width": 1280, "height": 760}
CURVE_MS = 8000
"""Time for the curve to show something."""
NARROW = {"width": 390, "height": 760}
URL = re.compile(r"http://127\.0\.0\.1:\d+")
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that the picture would load from another site."""


def save(name: str, png: bytes) -> None:
    """Write a picture with few colours. Raises `ValueError` if it is too large for the repository."""
    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    if len(small.getvalue()) > MAX_BYTES:
        raise ValueError(f"{name} has {len(small.getvalue())} bytes; {MAX_BYTES} is the most")
    (IMAGES / name).write_bytes(small.getvalue())


def opened(browser: Browser, url: str, size: dict[str, int], scheme: str) -> Page:
    page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)  # type: ignore[arg-type]
    page.goto(url)
    expect(page.locator("#model")).to_have_value("baton-tiny")
    page.get_by_role("button", name="Settings").first.click()
    page.locator("#s-admin-key").fill(ADMIN_KEY)
    page.get_by_role("button", name="Save").click()
    return page


def chat(page: Page) -> None:
    """Two questions, of which the second one needs a tool."""
    for text, ends in (QUESTION, "Regenerate"), (TOOL_QUESTION, "Send the result"):
        page.get_by_label("Message", exact=True).fill(text)
        if ends == "Send the result":
            page.get_by_role("button", name="Settings").first.click()
            page.get_by_role("button", name="Use the nine example tools").click()
            page.get_by_role("button", name="Save").click()
        page.locator("#text").press("Enter")
        page.get_by_role("button", name=ends).wait_for()
    page.locator(".call summary").click()
    page.get_by_role("button", name="Send the result").click()
    expect(page.locator(".assistant")).to_have_count(3)
    page.get_by_role("button", name="Regenerate").wait_for()


def load(page: Page, streams: int) -> None:
    page.locator("#load-count").fill(str(streams))
    page.locator("#load-seconds").fill("60")
    page.locator("#load-go").click()
    expect(page.locator(".stream:not(.ended)")).to_have_count(streams)
    page.wait_for_timeout(CURVE_MS)


def kill(page: Page) -> None:
    """Kill a worker whose streams have begun lately: the built-in model ends one within a second."""
    page.wait_for_function(BEGUN)
    page.get_by_label("Kill worker w0").click(no_wait_after=True)
    page.locator(".stream.moving").first.wait_for()
    page.wait_for_timeout(150)  # they are on their way


def take(browser: Browser, url: str) -> None:
    page = opened(browser, url, WIDE, "light")
    chat(page)
    load(page, 8)
    save("page-light.png", page.screenshot())
    page.close()
    page = opened(browser, url, WIDE, "dark")
    chat(page)
    load(page, 8)
    kill(page)
    save("page-dark.png", page.screenshot())
    take_top(url)
    page.close()
    page = opened(browser, url, NARROW, "light")
    load_and_show(page)
    save("page-phone.png", page.screenshot())
    page.close()


def load_and_show(page: Page) -> None:
    page.get_by_role("button", name="Picture").click()
    load(page, 8)
    page.locator("#live").evaluate("(each) => each.scrollTo(0, 0)")


def take_top(url: str) -> None:
    with Administration.of(url, Settings(), reads=True) as client:
        before = take_sample(client)
        time.sleep(1)
        shown = top_view(LoadChange(before, take_sample(client)), url)
    console = Console(record=True, width=112, file=io.StringIO(), force_terminal=True)
    console.print(shown)
    picture = URL.sub("http://127.0.0.1:8000", console.export_svg(title="baton top", unique_id="top"))
    picture = FONTS.sub("", picture)
    (IMAGES / "top.svg").write_text(picture)


def main() -> None:
    with serving(SERVE, {"BATON_ADMIN_KEY": ADMIN_KEY}) as server, sync_playwright() as playwright:
        url = url_of(read_until(server, "ready"))
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        take(browser, url)
        browser.close()


if __name__ == "__main__":
    main()
