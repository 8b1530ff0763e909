"""The files of the page: their headers, their size, and that they load nothing from elsewhere."""

import re

import pytest

from gateway.admin.page_files import INDEX, MAX_BYTES, PageFiles
from gateway.settings import GatewaySettings
from tests.gateway.harness.serving import serving

pytestmark = pytest.mark.anyio

FILES = PageFiles(GatewaySettings()).files


def test_they_are_small() -> None:
    assert sum(map(len, FILES.values())) <= MAX_BYTES
    assert len(FILES) <= 16


def test_nothing_is_loaded_from_elsewhere_or_written_into_the_html() -> None:
    page = FILES[INDEX].decode()
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert [each for each in loaded if not each.startswith(("/page/", "data:image/svg+xml,", "#"))] == []
    assert {each.removeprefix("/page/") for each in loaded if each.startswith("/page/")} <= set(FILES)
    assert not re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page)
    for name, content in FILES.items():
        text = content.decode()
        for outside in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "@import", "url("):
            assert outside not in text, name
        imported = re.findall(r'from "\./([^"]+)"', text)
        assert set(imported) <= set(FILES), name
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


async def test_each_has_a_strict_policy_and_needs_no_key() -> None:
    async with serving(api_key="secret") as served:
        for path in ("/", *(f"/page/{name}" for name in FILES)):
            response = await served.client.get(path)
            assert response.status_code == 200, path
            policy = response.headers["content-security-policy"]
            assert "unsafe" not in policy
            for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"):
                assert part in policy
            for part in ("frame-ancestors 'none'", "form-action 'none'", "require-trusted-types-for 'script'"):
                assert part in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["cache-control"] == "no-cache"
        kinds = {name: (await served.client.get(f"/page/{name}")).headers["content-type"] for name in FILES}
    assert kinds["main.js"] == "text/javascript; charset=utf-8"
    assert kinds["style.css"] == "text/css; charset=utf-8"
    assert kinds[INDEX] == "text/html; charset=utf-8"


async def test_a_browser_that_has_a_file_does_not_get_it_again() -> None:
    async with serving() as served:
        first = await served.client.get("/page/main.js")
        for given in (first.headers["etag"], f'"other", {first.headers["etag"]}'):
            again = await served.client.get("/page/main.js", headers={"if-none-match": given})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        other = await served.client.get("/page/main.js", headers={"if-none-match": '"other"'})
        assert (other.status_code, other.content) == (200, first.content)
        assert (await served.client.get("/")).headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("name", ["nothing.js", "..%2fstatus.py", "__init__.py", ""])
async def test_there_are_no_other_files(name: str) -> None:
    async with serving() as served:
        response = await served.client.get(f"/page/{name}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(("most", "told"), [(0.0, "0"), (30.0, "30"), (600.0, "60")])
def test_the_page_knows_how_long_its_streams_are_kept(most: float, told: str) -> None:
    files = PageFiles(GatewaySettings(max_resume_s=most)).files
    assert f'<meta name="baton-resume-s" content="{told}">'.encode() in files[INDEX]
