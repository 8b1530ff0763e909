"""The chat page in a real browser: it lists the models, sends what is typed, and shows what streams back."""

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.admin.status import PAGE_RESUME_S
from gateway.http.server import listen, serve
from gateway.settings import GatewaySettings
from protocol.commands import Submit
from protocol.events import Usage
from protocol.request import ChatInput, Message
from tests.gateway.faults.cutting import Way, breaking_way
from tests.gateway.harness.serving import Served, serving

pytestmark = pytest.mark.anyio

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PERSON = b"""<script>
const whenReady = setInterval(() => {
  if (!model.value) return;
  clearInterval(whenReady);
  text.value = "hello <b>";
  $("form").requestSubmit();
}, 10);
const whenDone = setInterval(() => {
  if (!log.querySelector(".note, .error")) return;
  clearInterval(whenDone);
  fetch("/seen", { method: "POST", body: document.documentElement.outerHTML });
}, 10);
</script>"""

STOPPER = b"""<script>
const whenReady = setInterval(() => {
  if (!model.value) return;
  clearInterval(whenReady);
  text.value = "hello";
  $("form").requestSubmit();
}, 10);
const whenBegun = setInterval(() => {
  if (log.querySelector(".assistant")?.textContent !== "Hello ") return;
  clearInterval(whenBegun);
  go.click();
}, 10);
</script>"""


class Screen:
    """The gateway with someone at the page who types, and shows the test what came of it."""

    def __init__(self, app: Any, person: bytes) -> None:
        self.conventions = app.conventions
        self.records = app.records
        self._app = app
        self._person = person
        self.seen = anyio.Event()
        self.dom = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_more(message: Any) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": message["body"] + self._person}
            elif message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.lower() != b"content-length"]
                message = {**message, "headers": kept}
            await send(message)

        if scope["type"] == "http" and scope["path"] == "/seen":
            await self._look(receive)
        else:
            page = scope["type"] == "http" and scope["path"] == "/"
            await self._app(scope, receive, send_more if page else send)

    async def _look(self, receive: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.dom += message.get("body", b"").decode()
            more = message.get("more_body", False)
        self.seen.set()


async def answer(served: Served, found: list[Submit]) -> None:
    (submit,) = await served.worker.wait_submits(1)
    found.append(submit)
    for token, piece in enumerate(("Hel", "lo ", "<i>you</i>")):
        served.worker.token(submit.stream, piece, token)
        await anyio.sleep(0.02)
    served.worker.finish(submit.stream, usage=Usage(3, 3))


@asynccontextmanager
async def browsing(tmp_path: Path, person: bytes, breaks: int = 0) -> AsyncIterator[tuple[Served, Screen, Way]]:
    """A browser at the page of a gateway, and the way between them, which breaks so often within an answer."""
    settings = GatewaySettings(port=0, flush_s=0.1)
    shutdown = anyio.Event()
    async with serving() as served, anyio.create_task_group() as group, AsyncExitStack() as stack:
        screen = Screen(served.app, person)
        listener = listen(settings)
        port = listener.getsockname()[1]
        group.start_soon(lambda: serve(screen, settings, shutdown=shutdown, listener=listener))
        way = await stack.enter_async_context(breaking_way(port, b'"lo ', breaks))
        argv = [BROWSER or "", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        argv += [f"--user-data-dir={tmp_path}", "--remote-debugging-port=0", f"http://127.0.0.1:{way.port}/"]
        async with await anyio.open_process(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            with anyio.fail_after(PAGE_RESUME_S - 5):  # what the page leaves behind would end by itself then
                yield served, screen, way
            browser.terminate()
        shutdown.set()


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
async def test_stopping_an_answer_cancels_it(tmp_path: Path) -> None:
    """Though the page asks for its streams to be kept, and the connection alone would not end this one."""
    async with browsing(tmp_path, STOPPER) as (served, _, _):
        (submit,) = await served.worker.wait_submits(1)
        served.worker.token(submit.stream, "Hello ", 1)
        assert await served.worker.wait_cancels(1) == [submit.stream]
        assert served.live == 0


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
@pytest.mark.parametrize("breaks", [0, 2])
async def test_a_person_chats(tmp_path: Path, breaks: int) -> None:
    """However often the connection breaks in the middle of the answer: the page goes on by itself."""
    submits: list[Submit] = []
    async with browsing(tmp_path, PERSON, breaks) as (served, screen, way):
        await answer(served, submits)
        await screen.seen.wait()
    assert way.cuts == 0
    dom = screen.dom
    asked = submits[0].input
    assert isinstance(asked, ChatInput)
    assert asked.messages == (Message("user", "hello <b>"),)
    assert '<option value="tiny">tiny</option>' in dom
    assert '<div class="user">hello &lt;b&gt;</div>' in dom
    assert '<div class="assistant">Hello &lt;i&gt;you&lt;/i&gt;</div>' in dom
    assert re.search(r'<div class="note">3 tokens, [\d.]+ per second</div>', dom)
    assert 'class="error"' not in dom
