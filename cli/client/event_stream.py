"""A streamed answer, resumed over a new connection when the old one breaks."""

import json
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import chain
from typing import Any

import httpx

from cli.client.event_parser import DONE, EventParser
from cli.client.server_url import refused
from cli.config.errors import CommandFailed

RESUME_S = 60.0
"""Seconds for which the server is asked to keep the stream, and the client tries to resume it."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
"""Between two attempts to resume; the pause doubles."""
DELETE_S = 5.0
"""Time limit of the request that deletes a stream."""

Chunks = Generator[dict[str, Any], None, None]


class EventStream:
    """One streamed answer, which is resumed if the connection breaks.

    Baton keeps a stream if the request has `resume_s`. A server that does not know `resume_s`, or has no room for
    another resumable stream, gets the request again without it.
    """

    def __init__(self, client: httpx.Client, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self._id = ""
        self._last = ""
        self._done = False

    def chunks(self, route: str, body: dict[str, Any]) -> Chunks:
        """Yield the JSON object of each event. Raises `CommandFailed`.

        At its end, or when the generator is closed before it, the stream is deleted on the server, which would keep
        it for `RESUME_S` otherwise.
        """
        options = body.get("stream_options", {})
        try:
            try:
                yield from self._begin(route, body | {"stream_options": options | {"resume_s": RESUME_S}})
            except _NotResumable:
                yield from self._begin(route, body)
            broken = time.monotonic()
            pause = FIRST_PAUSE_S
            while not self._done:
                before = self._last
                yield from self._resume(broken)
                if self._last != before:
                    broken, pause = time.monotonic(), FIRST_PAUSE_S
                if not self._done:
                    self._sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            if self._id:
                with suppress(httpx.HTTPError):  # a server that is gone keeps nothing
                    self._client.delete(self._path, timeout=DELETE_S)

    @property
    def _path(self) -> str:
        return f"/v1/streams/{self._id}"

    def _begin(self, route: str, body: dict[str, Any]) -> Chunks:
        try:
            with self._client.stream("POST", route, json=body) as answer:
                if answer.is_error:
                    answer.read()
                    if "resume_s" in body["stream_options"] and "resume_s" in answer.text:
                        raise _NotResumable
                raise_for(answer)
                self._id = answer.headers.get("x-stream-id", "")
                yield from self._read(answer)
        except httpx.HTTPError as error:
            if not self._id:
                raise CommandFailed(f"the server went away: {error}") from error
        if not (self._done or self._id):
            raise CommandFailed("the server ended the answer early")

    def _resume(self, broken: float) -> Chunks:
        """Yield what follows the last event. `broken` is the time since when the server could not be reached."""
        headers = {"last-event-id": self._last} if self._last else {}
        try:
            with self._client.stream("GET", self._path, headers=headers) as answer:
                if answer.status_code == httpx.codes.NO_CONTENT:
                    self._done = True
                    return
                later = answer.is_server_error or "retry-after" in answer.headers
                try_again = later and time.monotonic() - broken < RESUME_S
                if answer.is_error:
                    answer.read()
                if not try_again:
                    raise_for(answer)
                    yield from self._read(answer)
        except httpx.HTTPError as error:
            if time.monotonic() - broken >= RESUME_S:
                self._id = ""  # there is no server to delete the stream on
                raise CommandFailed(f"the server went away: {error}") from error

    def _read(self, answer: httpx.Response) -> Chunks:
        parser = EventParser()
        for event in chain.from_iterable(map(parser.feed, answer.iter_bytes())):
            if event.data == DONE:
                self._done = True
                return
            chunk = _chunk(event.data)
            self._last = event.id or self._last
            yield chunk


class _NotResumable(Exception):
    """Raised if the server refuses `resume_s`."""


def raise_for(answer: httpx.Response) -> None:
    """Raise `CommandFailed` if the server refused the request. The answer must have been read."""
    if not answer.is_error:
        return
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text.strip()[:200]
    raise refused(answer.status_code, message)


def _chunk(data: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise CommandFailed(f"the server sent an event that is not JSON: {_shown(data)}") from error
    if not isinstance(chunk, dict):
        raise CommandFailed(f"the server sent an event that is not an object: {_shown(data)}")
    if "error" in chunk:
        problem = chunk["error"]
        raise CommandFailed(f"the server says: {problem.get('message') if isinstance(problem, dict) else problem}")
    return chunk


def _shown(data: bytes) -> str:
    return data[:100].decode("utf-8", "replace")
