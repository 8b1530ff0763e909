"""Where answers come from: a model in this process, or a running server. Both stream text and end with a summary."""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, Self

import httpx

from cli.client.event_stream import EventStream, raise_for
from cli.client.server_url import server_client, unanswered
from cli.config.errors import CommandFailed
from protocol.request import Limits, Message, Sampling


@dataclass(frozen=True, slots=True)
class Ask:
    """One question. With `messages` the model's chat template is used, without them `prompt` is continued."""

    sampling: Sampling
    limits: Limits
    prompt: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The last item of an answer: counts, why it ended, and times in seconds from the question."""

    prompt_tokens: int
    completion_tokens: int
    reason: str
    first_s: float
    total_s: float
    by_token: bool = True
    """False when text came in parcels of any number of tokens: the first is no measure of the others then."""

    def line(self) -> str:
        """Counts and speed for `--stats`."""
        counts = f"{self.prompt_tokens} prompt tokens, {self.completion_tokens} generated ({self.reason})"
        if not self.by_token:
            overall = self.completion_tokens / self.total_s if self.total_s > 0 else 0.0
            return f"{counts}; first text after {self.first_s * 1000:.0f} ms, {overall:.1f} tokens/s in all"
        after_first = self.total_s - self.first_s
        rate = (self.completion_tokens - 1) / after_first if self.completion_tokens > 1 and after_first > 0 else 0.0
        return f"{counts}; first token after {self.first_s * 1000:.0f} ms, then {rate:.1f} tokens/s"


Pieces = Generator[str | Summary, None, None]
"""Text as it comes, then one summary."""


class Answers(Protocol):
    """A model that answers. Used by one thread; closing the iterator of `stream` cancels the answer."""

    name: str

    def stream(self, ask: Ask) -> Pieces:
        """Pieces of text as they come, then one `Summary`. Raises `CommandFailed` in a sentence."""

    def close(self) -> None: ...


class RemoteAnswers:
    """A running server, over its own HTTP interface."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self.name = name
        self._client = client

    @classmethod
    def connect(cls, url: str, api_key: str = "", model: str = "") -> Self:
        """Find the server and the model it serves. Raises `CommandFailed`."""
        client = server_client(url, api_key, httpx.Timeout(10.0, read=None))
        url = str(client.base_url).rstrip("/")
        try:
            answer = client.get("/v1/models")
        except httpx.HTTPError as error:
            raise unanswered(url, error) from error
        raise_for(answer)
        served = _served(answer)
        if model and model not in served:
            raise CommandFailed(f"{url} does not serve {model}, only {', '.join(served) or 'nothing'}")
        if not served:
            raise CommandFailed(f"{url} serves no model yet")
        return cls(client, model or served[0])

    def stream(self, ask: Ask) -> Pieces:
        route = "/v1/chat/completions" if ask.messages else "/v1/completions"
        began = time.monotonic()
        first = 0.0
        reason = ""
        usage: dict[str, int] = {}
        with closing(EventStream(self._client).chunks(route, self._body(ask))) as chunks:
            for chunk in chunks:
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", []):
                    reason = choice.get("finish_reason") or reason
                    if text := choice.get("text") or choice.get("delta", {}).get("content"):
                        first = first or time.monotonic() - began
                        yield text
        total = time.monotonic() - began
        counts = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        yield Summary(*counts, reason, first or total, total, by_token=False)

    def close(self) -> None:
        self._client.close()

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": ask.sampling.temperature,
            "top_k": ask.sampling.top_k,
            "top_p": ask.sampling.top_p,
            "min_p": ask.sampling.min_p,
            "seed": ask.sampling.seed,
            "presence_penalty": ask.sampling.presence_penalty,
            "frequency_penalty": ask.sampling.frequency_penalty,
            "repetition_penalty": ask.sampling.repetition_penalty,
        }
        if ask.sampling.logit_bias:
            body["logit_bias"] = {str(each.token): each.bias for each in ask.sampling.logit_bias}
        if ask.limits.min_tokens:
            body["min_tokens"] = ask.limits.min_tokens
        if ask.limits.max_tokens is not None:
            body["max_tokens"] = ask.limits.max_tokens
        if ask.limits.stop:
            body["stop"] = list(ask.limits.stop)
        if ask.limits.ignore_eos:
            body["ignore_eos"] = True
        if ask.messages:
            body["messages"] = [{"role": message.role, "content": message.content} for message in ask.messages]
        else:
            body["prompt"] = ask.prompt
        return body


def _served(answer: httpx.Response) -> list[str]:
    """The names of the models that a server lists."""
    try:
        return [str(entry["id"]) for entry in answer.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{answer.url} is not a list of models: is this a server of language models?") from error
