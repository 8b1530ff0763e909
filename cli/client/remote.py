"""The client of a model on a running server, over its OpenAI-compatible HTTP interface."""

import json
import time
from contextlib import closing
from typing import Any, Self

import httpx

from cli.client.chat_chunk import message_body, pieces_of
from cli.client.event_stream import EventStream, raise_for
from cli.client.model_client import ModelRequest, Pieces, Summary
from cli.client.server_url import server_client, shown_url, unanswered
from cli.config.errors import CommandFailed


class RemoteClient:
    """Implements `ModelClient` for a server."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self.name = name
        self._client = client

    @classmethod
    def connect(cls, url: str, api_key: str = "", model: str = "") -> Self:
        """Connect to the server and choose `model`, or its first one. Raises `CommandFailed`."""
        client = server_client(url, api_key, httpx.Timeout(10.0, read=None))
        url = shown_url(client, url)
        try:
            answer = client.get("/v1/models")
        except httpx.HTTPError as error:
            raise unanswered(url, error) from error
        raise_for(answer)
        served = _served(answer)
        if model and model not in served + _aliases(answer):
            raise CommandFailed(f"{url} does not serve {model}; it serves {', '.join(served) or 'no model yet'}")
        if not served:
            raise CommandFailed(f"{url} serves no model yet; try again when its workers are loaded")
        return cls(client, model or served[0])

    def stream(self, request: ModelRequest) -> Pieces:
        """See `ModelClient.stream`."""
        route = "/v1/chat/completions" if request.messages else "/v1/completions"
        began = time.monotonic()
        first = 0.0
        reason = ""
        usage: dict[str, int] = {}
        with closing(EventStream(self._client).chunks(route, self._body(request))) as chunks:
            for chunk in chunks:
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices") or []:
                    for piece in pieces_of(choice):
                        first = first or time.monotonic() - began
                        yield piece
                    reason = choice.get("finish_reason") or reason
        total = time.monotonic() - began
        counts = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        yield Summary(*counts, reason, first or total, total, by_token=False)

    def close(self) -> None:
        self._client.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": request.sampling.temperature,
            "top_k": request.sampling.top_k,
            "top_p": request.sampling.top_p,
            "min_p": request.sampling.min_p,
            "seed": request.sampling.seed,
            "presence_penalty": request.sampling.presence_penalty,
            "frequency_penalty": request.sampling.frequency_penalty,
            "repetition_penalty": request.sampling.repetition_penalty,
        }
        if request.sampling.logit_bias:
            body["logit_bias"] = {str(each.token): each.bias for each in request.sampling.logit_bias}
        if request.limits.min_tokens:
            body["min_tokens"] = request.limits.min_tokens
        if request.limits.max_tokens is not None:
            body["max_tokens"] = request.limits.max_tokens
        if request.limits.stop:
            body["stop"] = list(request.limits.stop)
        if request.limits.ignore_eos:
            body["ignore_eos"] = True
        if request.grammar is not None:
            schema = {"name": "answer", "schema": json.loads(request.grammar.source), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if request.tools:
            body["tools"] = json.loads(request.tools)
        if request.messages:
            body["messages"] = [message_body(message, request.images) for message in request.messages]
        else:
            body["prompt"] = request.prompt
        return body


def _aliases(answer: httpx.Response) -> list[str]:
    """Return the further names of the models, of a server that has such names."""
    return [str(name) for entry in answer.json()["data"] for name in entry.get("aliases") or ()]


def _served(answer: httpx.Response) -> list[str]:
    """Return the names of the models in an answer of `/v1/models`."""
    try:
        return [str(entry["id"]) for entry in answer.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{answer.url} is not a list of models; check --url") from error
