"""The page on a phone, in the dark, with the keyboard alone, and with less motion, in a real browser."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.gateway.admin.browser import browsing, needs_browser, say
from tests.gateway.harness.serving import serving

pytestmark = [pytest.mark.anyio, needs_browser]

FOCUSED = "document.activeElement.id || document.activeElement.getAttribute('aria-label')"
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 640}, "has_touch": True}
CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d");
    const rgb = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
        .map((each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = rgb(getComputedStyle(at).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || !element.checkVisibility({ opacityProperty: true })) continue;
        if (element.closest(".hidden, .skip, [disabled]")) continue;
        const colors = [light(rgb(getComputedStyle(element).color)), light(behind(element))];
        const [one, other] = colors.sort((a, b) => b - a);
        const name = `${element.tagName} ${element.className} ${element.textContent.slice(0, 20)}`;
        found.push([name, (one + 0.05) / (other + 0.05)]);
    }
    return found;
}"""


async def fits(page: Page) -> bool:
    wide: bool = await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return wide


async def test_a_phone_shows_one_view_at_a_time_without_scrolling_sideways() -> None:
    async with serving("w0", "w1") as served, browsing(f"http://127.0.0.1:{served.port}/", **PHONE) as page:
        await expect(page.locator("#model")).to_have_value("tiny")
        assert await fits(page)
        await expect(page.locator("#live")).to_be_hidden()
        await say(page, "a_very_long_word_" * 30 + "\n\n```\n" + "long line " * 30 + "\n```")
        (submit,) = (
            await served.workers[0].wait_submits(1)
            if served.workers[0].submits
            else await served.workers[1].wait_submits(1)
        )
        worker = next(worker for worker in served.workers if worker.submits)
        worker.token(submit.stream, "| " + "cell | " * 20 + "\n|" + "-|" * 20 + "\n\n" + "x" * 400, 1)
        worker.finish(submit.stream)
        await expect(page.locator(".assistant table")).to_be_visible()
        assert await fits(page)
        await page.get_by_role("button", name="Picture").click()
        await expect(page.locator("#chat")).to_be_hidden()
        await expect(page.get_by_label("Worker w1", exact=True)).to_be_visible()
        assert await fits(page)
        await page.get_by_role("button", name="Settings").first.click()
        await expect(page.get_by_label("System prompt")).to_be_visible()
        assert await fits(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_contrast_in_the_light_and_in_the_dark(scheme: str) -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/", color_scheme=scheme) as page:
        await expect(page.get_by_label("Worker w0", exact=True)).to_be_visible()
        await say(page, "hello")
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "# A\n> b\n\n[c](https://a.example) `d`\n```\ne\n```", 1)
        served.worker.finish(submit.stream)
        await expect(page.locator(".assistant footer button").first).to_be_visible()
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        found = await page.evaluate(CONTRAST)
    assert len(found) > 30
    assert {name: ratio for name, ratio in found if ratio < 4.5} == {}
    assert (sum(map(int, ground[4:-1].split(","))) > 3 * 128) == (scheme == "light")


async def test_the_keyboard_is_enough() -> None:
    """The message has the focus at first; Tab goes through the page in its order; dialogs give the focus back."""
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        await expect(page.locator("#model")).to_have_value("tiny")
        await expect(page.get_by_label("Worker w0", exact=True)).to_be_visible()
        await expect(page.locator("#text")).to_be_focused()
        await page.locator(".skip").focus()
        order = []
        await page.keyboard.press("Tab")
        for _ in range(30):
            order.append(
                await page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')")
            )
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement === document.body"):
                break
        named = [each for each in order if each]
        wanted = [
            "model",
            "new",
            "open-chats",
            "open-settings",
            "text",
            "go",
            "Kill worker w0",
            "load-count",
            "load-go",
        ]
        assert [each for each in named if each in wanted] == wanted
        for key, dialog in (("Alt+s", "settings"), ("Alt+c", "chats")):
            await page.locator("#text").focus()
            await page.keyboard.press(key)
            await expect(page.locator(f"#{dialog}")).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.locator(f"#{dialog}")).to_be_hidden()
            await expect(page.locator("#text")).to_be_focused()


async def test_everything_that_can_be_used_has_a_name() -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        await expect(page.get_by_label("Worker w0", exact=True)).to_be_visible()
        unnamed = await page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, textarea, dialog, section, nav")]
                .filter((each) => !(each.getAttribute("aria-label") || each.getAttribute("aria-labelledby") ||
                    each.labels?.length || each.textContent.trim()))
                .map((each) => each.outerHTML)"""
        )
        ids = await page.evaluate("[...document.querySelectorAll('[id]')].map(({ id }) => id)")
    assert unnamed == []
    assert len(ids) == len(set(ids))


async def test_less_motion_moves_nothing() -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/", reduced_motion="reduce") as page:
        await expect(page.locator("#model")).to_have_value("tiny")
        await say(page, "hello")
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hi", 1)
        stream = page.locator(".stream").first
        await expect(stream).to_be_attached()
        assert await stream.evaluate("(each) => getComputedStyle(each).transitionProperty") == "none"
        assert await stream.evaluate("(each) => getComputedStyle(each).animationName") == "none"
