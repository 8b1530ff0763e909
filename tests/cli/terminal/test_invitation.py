"""What people are told when the server is ready works as it stands."""

import json
import shlex
from typing import Any

import pytest

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.settings import Settings
from cli.terminal.invitation import Invitation, base_url, curl_line
from protocol.events import Gauges


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_the_url_is_one_that_this_machine_reaches(host: str, url: str) -> None:
    assert base_url(host, 80) == url


@pytest.mark.parametrize("chat", [True, False])
def test_the_curl_line_survives_the_shell(chat: bool) -> None:
    words = shlex.split(curl_line("http://h:1", "it's a model", chat=chat, key=False))
    assert words[:2] == ["curl", f"http://h:1/v1/{'chat/' if chat else ''}completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's a model"
    assert ("messages" in body) == chat


def test_the_curl_line_names_the_key_without_showing_it() -> None:
    assert '-H "Authorization: Bearer $BATON_API_KEY"' in curl_line("http://h:1", "m", chat=True, key=True)


def test_nobody_is_invited_before_somebody_listens() -> None:
    nothing: Any = {"hello": None, "ready": None, "loading": None, "reason": "", "last_progress": 0.0}
    ready = WorkerStatus(
        name="w0",
        state=WorkerState.READY,
        pid=1,
        incarnation=1,
        restarts=0,
        gauges=Gauges(),
        **nothing,
    )
    invitation = Invitation(Settings(port=0))
    assert (invitation.text(ready), invitation.postponed) == ("", ready)
    invitation.listening("127.0.0.1", 4711)
    assert "is served on http://127.0.0.1:4711" in invitation.text(ready)
