"""Answers of hundreds of megabytes: refused by name, or rendered in pieces between which others are served."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.answers.posts import CHAT, COMPLETIONS, JSON, LOGPROBS, chat, completion, peak_rss
from tests.attacks.answers.probing import Probing
from tests.attacks.conftest import LONGEST_TURN_MS
from tests.attacks.server import HOST, AttackedServer, attacked_server

MIB = 1 << 20


def post(server: AttackedServer, path: str, body: str) -> Any:
    """The whole answer to a request, which other clients' probes do not have to wait for."""
    with Probing(server) as probing:
        status, answer = server.request("POST", path, body, JSON)
    assert status == 200, answer
    assert probing.answered > 0
    assert probing.failed == 0
    return json.loads(answer)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, chat(n=64, max_tokens=4000, **LOGPROBS), "max_tokens"),
        (CHAT, chat(n=64, max_completion_tokens=4000, **LOGPROBS), "max_completion_tokens"),
        (CHAT, chat(n=64, **LOGPROBS), "max_tokens"),
        (CHAT, chat(n=64, max_tokens=1 << 20, return_token_ids=True, **LOGPROBS), "max_tokens"),
        (COMPLETIONS, completion(n=64, max_tokens=4000, logprobs=20), "max_tokens"),
        (COMPLETIONS, completion(prompt=["a"] * 64, max_tokens=4000, logprobs=20), "max_tokens"),
    ],
    ids=["chat", "chat-of-newer-clients", "chat-without-a-limit", "chat-over-the-context", "completion", "prompts"],
)
def test_an_answer_over_the_bound_is_refused_by_name(server: AttackedServer, path: str, body: str, field: str) -> None:
    status, answer = server.request("POST", path, body, JSON)
    assert status == 400
    error = json.loads(answer)["error"]
    assert error["param"] == field
    assert "max_answer_bytes" in error["message"]
    assert "or less" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(n=8, max_tokens=1500, **LOGPROBS)),
        (COMPLETIONS, completion(n=8, max_tokens=1500, logprobs=20, return_token_ids=True)),
    ],
    ids=["chat", "completion"],
)
def test_a_large_answer_is_rendered_in_pieces(server: AttackedServer, path: str, body: str) -> None:
    answer = post(server, path, body)
    assert len(answer["choices"]) == 8
    for choice in answer["choices"]:
        reported = choice["logprobs"]["content" if path == CHAT else "token_logprobs"]
        assert len(reported) == 1500
    assert answer["usage"]["completion_tokens"] == 8 * 1500


def test_the_whole_context_without_log_probabilities_is_never_too_large(server: AttackedServer) -> None:
    answer = post(server, CHAT, chat())
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] > 4000


def test_steps_of_64_sequences_with_log_probabilities_are_streamed_in_pieces(server: AttackedServer) -> None:
    with Probing(server) as probing:
        status, answer = server.request("POST", CHAT, chat(n=64, max_tokens=40, stream=True, **LOGPROBS), JSON)
    assert (status, probing.failed) == (200, 0)
    assert tokens_of(answer) == 64 * 40


def test_a_client_that_stalls_gets_its_backlog_in_pieces(server: AttackedServer) -> None:
    """Its backlog is of 8,000 tokens with 20 log-probabilities each."""
    body = chat(n=8, max_tokens=1000, stream=True, **LOGPROBS)
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    connection.request("POST", CHAT, body, dict(JSON))
    response = connection.getresponse()
    wait_for(lambda: metric(server, "baton_live_sequences") == 0)
    answer = response.read()
    connection.close()
    assert tokens_of(answer) == 8 * 1000
    assert answer.endswith(b"data: [DONE]\n\n")


def test_what_was_generated_while_a_client_was_away_is_rendered_in_pieces(server: AttackedServer) -> None:
    body = chat(n=8, max_tokens=1000, stream=True, stream_options={"resume_s": 60}, **LOGPROBS)
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    connection.request("POST", CHAT, body, dict(JSON))
    response = connection.getresponse()
    stream, first = response.headers["x-stream-id"], response.read(1)
    response.close()
    connection.close()
    assert first == b"i"
    wait_for(lambda: metric(server, "baton_live_sequences") == 0)
    status, answer = server.request("GET", f"/v1/streams/{stream}")
    if status == 200:
        assert tokens_of(answer) == 8 * 1000
    else:  # much was sent before it left
        assert (status, json.loads(answer)["error"]["code"]) == (410, "events_gone")
    server.request("DELETE", f"/v1/streams/{stream}")  # a server waits for its resumable streams before it ends


@pytest.fixture
def small(tmp_path: Path) -> Iterator[AttackedServer]:
    """A server that may take 16 MiB for all answers, and 8 MiB for one."""
    words = ("--max-total-answer-bytes", str(16 * MIB), "--max-answer-bytes", str(8 * MIB))
    with attacked_server(tmp_path, *words) as server:
        yield server
        assert server.process.poll() is None, server.log.read_text()
        assert server.longest_turn.cpu_ms < LONGEST_TURN_MS


def test_a_client_that_reads_nothing_loses_its_answer_and_not_the_server_its_memory(small: AttackedServer) -> None:
    before = small.rss
    stalled = []
    for _ in range(4):
        connection = http.client.HTTPConnection(HOST, small.port, timeout=60)
        connection.request("POST", CHAT, chat(n=8, max_tokens=2000, stream=True, **LOGPROBS), dict(JSON))
        stalled.append((connection, connection.getresponse()))
    wait_for(lambda: metric(small, "baton_live_sequences") == 0)
    assert metric(small, "baton_answer_bytes") <= 16 * MIB
    assert peak_rss(small) - before < 64 * MIB
    assert small.request("POST", CHAT, chat(max_tokens=4), JSON)[0] == 200, "others are served"
    for connection, response in stalled:
        answer = response.read()
        connection.close()
        assert b'"code":"overloaded"' in answer
        assert b"max_answer_bytes" in answer or b"max_total_answer_bytes" in answer
        assert answer.endswith(b"data: [DONE]\n\n")
    assert metric(small, "baton_answer_bytes") == 0


def tokens_of(answer: bytes) -> int:
    """The tokens of a streamed chat with log-probabilities."""
    chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    reports = (choice["logprobs"] for chunk in chunks for choice in chunk["choices"])
    return sum(len(each["content"]) for each in reports if each is not None)


def metric(server: AttackedServer, name: str) -> float:
    """The sum of a metric's samples."""
    lines = server.request("GET", "/metrics")[1].decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the test's time limit ends a wait in vain."""
    while not condition():
        time.sleep(0.05)
