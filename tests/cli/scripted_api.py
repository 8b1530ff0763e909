"""A server of OpenAI's API with scripted answers, for clients in processes of their own."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.ports import QuietHandler, serving_http

Delta = dict[str, Any]
"""The `delta` of a choice of a chunk."""


def text(content: str) -> Delta:
    return {"content": content}


def reasoning(content: str) -> Delta:
    return {"reasoning_content": content}


def call(name: str, *arguments: str, index: int = 0) -> list[Delta]:
    """A tool call whose arguments come in parts."""
    first = {"index": index, "id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"index": index, "function": {"arguments": part}} for part in arguments]
    return [{"tool_calls": [part]} for part in (first, *parts)]


class ScriptedApi:
    """Answers one chat completion after the other, and keeps the bodies of the requests."""

    def __init__(self, replies: Sequence[Sequence[Delta]], *, key: str = "", reason: str = "") -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self._replies = list(replies)
        self._key = key
        self._reason = reason

    @contextmanager
    def serve(self) -> Iterator["ScriptedApi"]:
        """Serve on a free port of loopback."""
        api = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self._send(*api._models(self.headers.get("authorization", "")))

            def do_POST(self) -> None:
                api.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self._send(200, "text/event-stream", api._events())

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        with serving_http(Handler) as self.url:
            yield self

    def _models(self, authorization: str) -> tuple[int, str, bytes]:
        if self._key and authorization != f"Bearer {self._key}":
            return 401, "application/json", b'{"error": {"message": "the API key is wrong"}}'
        return 200, "application/json", b'{"data": [{"id": "scripted"}]}'

    def _events(self) -> bytes:
        deltas = self._replies.pop(0)
        called = any("tool_calls" in delta for delta in deltas)
        reason = self._reason or ("tool_calls" if called else "stop")
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"
