"""The message of a server that is ready, whose curl command works as it is."""

import json
import shlex
from typing import Any

import pytest
from msgspec.structs import replace

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.config.settings import Settings
from cli.terminal.ready_message import ReadyMessage, curl_line
from gateway.models.terms import ModelTerms
from protocol.events import Capabilities, Gauges, Hello, Ready

CHAT = Capabilities(chat=True)
FACT = "The capital of France is Paris."


def ready_worker(hello: Hello | None = None) -> WorkerStatus:
    nothing: Any = {"ready": None, "loading": None, "reason": "", "last_progress": 0.0}
    return WorkerStatus(
        name="w0", state=WorkerState.READY, pid=1, incarnation=1, restarts=0, gauges=Gauges(), hello=hello, **nothing
    )


@pytest.mark.parametrize(
    ("serves", "route", "field", "value"),
    [
        (CHAT, "chat/completions", "messages", [{"role": "user", "content": "What is the capital of France?"}]),
        (Capabilities(), "completions", "prompt", "The capital of France is"),
        (Capabilities(text=False), "completions", "prompt", [1, 2, 3]),
        (Capabilities(generates=False, vector_width=8, pairs=True), "embeddings", "input", FACT),
        (Capabilities(generates=False, labels=2, label_names=("a", "b")), "classify", "input", FACT),
        (Capabilities(generates=False, labels=1, pairs=True), "rerank", "documents", [FACT, "Bread is baked."]),
    ],
    ids=["chat", "text", "tokens", "embeddings", "labels", "pairs"],
)
def test_the_curl_line_survives_the_shell(serves: Capabilities, route: str, field: str, value: object) -> None:
    words = shlex.split(curl_line("http://h:1", "it's a model", serves, key=False))
    assert words[:2] == ["curl", f"http://h:1/v1/{route}"]
    body = json.loads(words[words.index("-d") + 1])
    assert (body["model"], body[field]) == ("it's a model", value)


def test_the_curl_line_names_the_key_without_showing_it() -> None:
    assert '-H "Authorization: Bearer $BATON_API_KEY"' in curl_line("http://h:1", "m", CHAT, key=True)


def test_the_message_says_that_there_is_no_tokenizer() -> None:
    ready_message = ReadyMessage(Settings(port=0))
    ready_message.listening("127.0.0.1", 4711)
    status = replace(ready_worker(), ready=Ready(Capabilities(text=False)))
    assert "It has no tokenizer: prompts and answers are token ids." in ready_message.text(status)
    assert "tokenizer" not in ready_message.text(replace(status, ready=Ready(CHAT)))


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
    assert curl_line("unix:/run/b.sock", "m", Capabilities(), key=False).startswith(
        "curl --unix-socket /run/b.sock http://localhost/v1/completions "
    )
