"""The message of a server that is ready, whose curl command works as it is."""

import json
import shlex
from typing import Any

import pytest

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.config.settings import Settings
from cli.terminal.ready_message import ReadyMessage, curl_line
from protocol.events import Gauges


@pytest.mark.parametrize("chat", [True, False])
def test_the_curl_line_survives_the_shell(chat: bool) -> None:
    words = shlex.split(curl_line("http://h:1", "it's a model", chat=chat, key=False))
    assert words[:2] == ["curl", f"http://h:1/v1/{'chat/' if chat else ''}completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's a model"
    assert ("messages" in body) == chat


def test_the_curl_line_names_the_key_without_showing_it() -> None:
    assert '-H "Authorization: Bearer $BATON_API_KEY"' in curl_line("http://h:1", "m", chat=True, key=True)


def test_the_message_is_empty_until_the_gateway_listens() -> None:
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
    ready_message = ReadyMessage(Settings(port=0))
    assert (ready_message.text(ready), ready_message.postponed) == ("", ready)
    assert (ready_message.fields(ready), ready_message.listens) == ({}, False)
    ready_message.listening("127.0.0.1", 4711)
    assert "is served on http://127.0.0.1:4711" in ready_message.text(ready)
    assert ready_message.fields(ready)["url"] == "http://127.0.0.1:4711"
    assert ready_message.listens


def test_the_curl_line_reaches_a_unix_socket() -> None:
    assert curl_line("unix:/run/b.sock", "m", chat=False, key=False).startswith(
        "curl --unix-socket /run/b.sock http://localhost/v1/completions "
    )
