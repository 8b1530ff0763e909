"""The message of a server that is ready, whose curl command works as it is."""

import json
import shlex
from typing import Any

import pytest

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.config.settings import Settings
from cli.terminal.ready_message import ReadyMessage, curl_line
from gateway.models.terms import ModelTerms
from protocol.events import Gauges, Hello


def ready_worker(hello: Hello | None = None) -> WorkerStatus:
    nothing: Any = {"ready": None, "loading": None, "reason": "", "last_progress": 0.0}
    return WorkerStatus(
        name="w0", state=WorkerState.READY, pid=1, incarnation=1, restarts=0, gauges=Gauges(), hello=hello, **nothing
    )


@pytest.mark.parametrize("chat", [True, False])
def test_the_curl_line_survives_the_shell(chat: bool) -> None:
    words = shlex.split(curl_line("http://h:1", "it's a model", chat=chat, key=False))
    assert words[:2] == ["curl", f"http://h:1/v1/{'chat/' if chat else ''}completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's a model"
    assert ("messages" in body) == chat


def test_the_curl_line_names_the_key_without_showing_it() -> None:
    assert '-H "Authorization: Bearer $BATON_API_KEY"' in curl_line("http://h:1", "m", chat=True, key=True)


@pytest.mark.parametrize(
    ("context", "model_context", "bound", "said"),
    [
        (4096, 4096, "", "Context: 4096 tokens"),
        (4096, 0, "", "Context: 4096 tokens"),
        (4096, 32768, "setting", "Context: 4096 of the model's 32768 tokens, as `--context` says"),
        (8192, 32768, "memory", "Context: 8192 of the model's 32768 tokens, which memory allows"),
        (4096, 32768, "device", "its cache is allocated at the start: `--context` takes more"),
        (4096, 32768, "whim", "Context: 4096 of the model's 32768 tokens, whim"),
    ],
)
def test_the_message_says_what_context_was_taken(context: int, model_context: int, bound: str, said: str) -> None:
    hello = Hello(2, "w0", 1, 1, "m", "iree", "cpu", 8, context, model_context=model_context, context_bound=bound)
    ready = ready_worker(hello)
    ready_message = ReadyMessage(Settings(port=0))
    ready_message.listening("127.0.0.1", 4711)
    assert said in ready_message.text(ready).splitlines()[1]


def test_a_server_with_several_models_says_the_context_of_each() -> None:
    models = [
        ModelTerms(name="a", context=8192, model_context=32768, context_bound="memory"),
        ModelTerms(name="b", load="first-use", context=512, model_context=512),
        ModelTerms(name="c", load="first-use"),
    ]
    ready_message = ReadyMessage(Settings(port=0), models)
    ready_message.listening("127.0.0.1", 4711)
    assert ready_message.on_demand(["a", "b", "c"]).splitlines()[1:4] == [
        "  a: loaded at the start, context 8192 of the model's 32768 tokens, which memory allows",
        "  b: loaded by its first request, context 512 tokens",
        "  c: loaded by its first request, context known when it is downloaded",
    ]
    assert "  b: loaded by its first request, context 512 tokens" in ready_message.text(ready_worker())


def test_the_message_is_empty_until_the_gateway_listens() -> None:
    ready, ready_message = ready_worker(), ReadyMessage(Settings(port=0))
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
