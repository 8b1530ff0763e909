"""Answers are shown as Markdown in a real browser, and nothing of them is executed, loaded or slow."""

import pytest
from playwright.async_api import Page, expect

from gateway.admin.page_files import PageFiles
from gateway.settings import GatewaySettings
from tests.gateway.admin.browser import browsing, needs_browser
from tests.gateway.harness.serving import serving

pytestmark = [pytest.mark.anyio, needs_browser]

RENDER = """async (text) => {
    const { render } = await import("/page/markdown.js");
    const shown = document.createElement("div");
    shown.append(render(text));
    document.body.append(shown);
    return shown.innerHTML;
}"""
SHOWN = {
    "# A **b**": "<h3>A <strong>b</strong></h3>",
    "a\nb\n\nc": "<p>a<br>b</p><p>c</p>",
    "*a* __b__ ~~c~~ `d`": "<p><em>a</em> <strong>b</strong> <del>c</del> <code>d</code></p>",
    "**a *b***": "<p><strong>a <em>b</em></strong></p>",
    "snake_case_name 2 * 3": "<p>snake_case_name 2 * 3</p>",
    "**a *b": "<p>**a *b</p>",
    "\\*a\\*": "<p>*a*</p>",
    "- a\n- b\n  - c\n\n1. d\n2. e": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>d</li><li>e</li></ol>",
    "3. a": '<ol start="3"><li>a</li></ol>',
    "> a\n> - b": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>",
    "---": "<hr>",
}
HOSTILE = [
    "<script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    "<svg/onload=window.hurt=1>",
    "[x](javascript:window.hurt=1)",
    "[x](  JaVaScRiPt:window.hurt=1)",
    "[x](data:text/html,<script>window.hurt=1</script>)",
    "[x](vbscript:window.hurt=1)",
    "[x](java\tscript:window.hurt=1)",
    '[x](https://a.example" onmouseover="window.hurt=1)',
    "![x](https://a.example/track.png)",
    "```html\n<script>window.hurt = 1</script>\n```",
    '```"><script>window.hurt=1</script>\nx\n```',
    "| <img src=x onerror=window.hurt=1> |\n|-|\n| <script>window.hurt=1</script> |",
    "- <iframe srcdoc='<script>parent.hurt=1</script>'></iframe>",
    "# <style>*{display:none}</style>",
    "`<b>`</code><script>window.hurt=1</script>",
    "<https://a.example/><a href='javascript:window.hurt=1'>x</a>",
    "[x](https://user:pass@a.example/%0a)",
    "<form action=https://a.example><button>x</button></form>",
    "&lt;script&gt;window.hurt=1&lt;/script&gt;",
]
TAGS = {
    *(
        "P",
        "BR",
        "H3",
        "H4",
        "H5",
        "H6",
        "UL",
        "OL",
        "LI",
        "BLOCKQUOTE",
        "HR",
        "PRE",
        "CODE",
        "STRONG",
        "EM",
        "DEL",
        "A",
    ),
    *("FIGURE", "FIGCAPTION", "SPAN", "BUTTON", "DIV", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"),
}
LARGE = {
    "a megabyte": "word " * 200_000,
    "nested lists": "\n".join(" " * depth + "- a" for depth in range(600)),
    "list markers": "- " * 90_000,
    "quotes": "> " * 90_000,
    "stars": "**a *b " * 25_000,
    "tildes": "~~a ~~" * 30_000,
    "brackets": "[a](" * 45_000,
    "backticks": " ".join("`" * length for length in range(1, 600)),
    "pipes": "|a" * 45_000 + "\n" + "|-" * 45_000,
    "fences": "```\n" * 45_000,
    "addresses": "http://" * 28_000,
    "hashes": "# " * 90_000,
}
MOST_NODES = 250_000
MOST_DEPTH = 40
MEASURE = """async (text) => {
    const { render } = await import("/page/markdown.js");
    const shown = render(text);
    let nodes = 0, depth = 0;
    const left = [[shown, 0]];
    while (left.length) {
        const [node, level] = left.pop();
        nodes++;
        depth = Math.max(depth, level);
        for (const child of node.childNodes) left.push([child, level + 1]);
    }
    return [nodes, depth, shown.textContent.match(/\\p{L}/gu)?.length ?? 0];
}"""


async def rendered(page: Page, text: str) -> str:
    shown: str = await page.evaluate(RENDER, text)
    return shown


async def test_markdown_is_shown() -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        assert {text: await rendered(page, text) for text in SHOWN} == SHOWN


async def test_a_table_and_code_are_shown() -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        await rendered(
            page, "| a | b |\n|---|:-:|\n| 1 | `2` |\n\n```py\nprint('<b>')\n```\n[a](https://a.example/?q=1#x)"
        )
        await expect(page.locator("table th")).to_have_text(["a", "b"])
        await expect(page.locator("table td code")).to_have_text("2")
        await expect(page.locator("figure pre")).to_have_text("print('<b>')")
        await expect(page.locator("figcaption span")).to_have_text("py")
        link = page.get_by_role("link", name="a", exact=True)
        await expect(link).to_have_attribute("href", "https://a.example/?q=1#x")
        await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")


async def test_hostile_text_is_only_text() -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for text in HOSTILE:
            await rendered(page, text)
            found = await page.evaluate(
                """() => [...document.body.lastChild.querySelectorAll("*")].map((each) =>
                    [each.tagName, each.getAttributeNames(), each.getAttribute("href")])"""
            )
            for tag, attributes, address in found:
                assert tag in TAGS, text
                assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], text
                assert address is None or address.startswith(("https://", "http://", "mailto:")), text
        await page.locator("a[href]").first.dispatch_event("mouseover")
        assert await page.evaluate("window.hurt") is None
        assert [url for url in asked if "a.example" in url or "/x" in url] == []


async def test_text_never_becomes_html_even_if_a_script_tries() -> None:
    """Trusted Types: the browser itself refuses it."""
    breaches = "This document requires 'TrustedHTML'"
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/", breaches=breaches) as page:
        scripts = [name for name in PageFiles(GatewaySettings()).files if name.endswith(".js")]
        tried = await page.evaluate(
            """() => {
                try { document.createElement("div").innerHTML = "<b>x</b>"; return "done"; }
                catch (error) { return error.name; }
            }"""
        )
        loaded = await page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
        assert {url.rpartition("/")[2] for url in loaded} >= set(scripts), "the test would miss a script"
        assert all(url.startswith(f"http://127.0.0.1:{served.port}/") for url in loaded)
    assert tried == "TypeError"


async def test_large_text_is_shown_whole_with_bounded_elements() -> None:
    async with serving() as served, browsing(f"http://127.0.0.1:{served.port}/") as page:
        for name, text in LARGE.items():
            nodes, depth, letters = await page.evaluate(MEASURE, text)
            assert nodes <= MOST_NODES, name
            assert depth <= MOST_DEPTH, name
            assert letters >= sum(letter.isalpha() for letter in text), f"{name}: text is lost"
