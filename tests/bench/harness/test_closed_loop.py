"""Closed-loop load: its requests and its figures."""

import asyncio
import json
import random
import urllib.parse
from typing import Any

import pytest

from bench.harness import closed_loop
from bench.harness.closed_loop import Load, percentile, run_level
from bench.harness.sse_client import BadAnswerError, StreamedAnswer
from gateway.openai.decoding import RequestDecoder
from gateway.settings import GatewaySettings


class Server:
    """Answers each request with 3 tokens after 1, 2 and 4 seconds, but for those that are to fail."""

    def __init__(self, failing: int = 0) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.most = self._running = 0
        self._failing = failing

    async def request(self, url: urllib.parse.SplitResult, path: str, key: str, body: dict[str, Any]) -> StreamedAnswer:
        self.sent.append((path, body))
        number = len(self.sent)
        self._running += 1
        self.most = max(self.most, self._running)
        await asyncio.sleep(0)
        self._running -= 1
        if number <= self._failing:
            raise BadAnswerError("no")
        return StreamedAnswer(0.0, [1.0, 2.0, 4.0], 4.0, 3, "length", True)


def run(load: Load, server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(closed_loop, "request", server.request)
    return asyncio.run(run_level(load, 2, 5, random.Random(1)))


def test_so_many_requests_are_in_flight_and_their_times_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    figures = run(Load("http://x", "m", 3), server, monkeypatch)
    assert (len(server.sent), server.most) == (5, 2)
    assert (figures["bad"], figures["why"], figures["tokens"]) == (0, None, 15)
    assert (figures["ttft_ms"], figures["itl_ms"], figures["e2e_ms"]) == ([1000.0, 1000.0], [2000.0, 2000.0], 4000.0)


def test_requests_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = run(Load("http://x", "m", 3), Server(failing=2), monkeypatch)
    assert (figures["bad"], figures["why"], figures["tokens"]) == (2, "BadAnswerError('no')", 9)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_gateway_accepts_the_requests_of_each_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    run(Load("http://x", "m", 3, prompt_words=4, same_prefix=2, path=path), server, monkeypatch)
    decoder = RequestDecoder(GatewaySettings())
    decode = decoder.chat if "chat" in path else decoder.completion
    assert all(decode(json.dumps(body).encode()).request.model == "m" for sent, body in server.sent if sent == path)
    assert len({str(body) for _, body in server.sent}) == 5, "all prompts differ"


def test_a_percentile() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.99) == 2.0
