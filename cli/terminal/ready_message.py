"""The message of a server that is ready: its URL, a curl command to try it, and the chat page; or a log line."""

import json
import shlex
from collections.abc import Sequence

from actors.supervision.worker import WorkerStatus
from cli.client.server_url import base_url, socket_path
from cli.config.settings import Settings
from gateway.models.terms import ModelTerms
from protocol.events import Capabilities


class ReadyMessage:
    """Composes the message. The address is known once the gateway listens: port 0 lets the system choose one."""

    def __init__(self, settings: Settings, models: Sequence[ModelTerms] = ()) -> None:
        """`models`: those of a server with several."""
        self._settings = settings
        self._models = models
        self._url = ""
        self.postponed: WorkerStatus | None = None
        """The first worker that became ready before the gateway listened."""

    def listening(self, host: str, port: int) -> None:
        """Set the address that the gateway listens on; `unix:PATH` is a host, too."""
        unix = bool(socket_path(host))
        self._url = host if unix else base_url(host, port, tls=bool(self._settings.tls_cert))

    @property
    def url(self) -> str:
        """The address; empty if the gateway does not listen yet."""
        return self._url

    @property
    def listens(self) -> bool:
        """The address is known."""
        return bool(self._url)

    def fields(self, status: WorkerStatus) -> dict[str, object]:
        """Return the fields of the log line for the first worker that is ready; empty if the gateway does not listen
        yet."""
        if not self._url:
            self.postponed = self.postponed or status
            return {}
        hello = status.hello
        described: dict[str, object] = {}
        if hello:
            described = {"model": hello.model, "backend": hello.backend, "device": hello.device}
            described |= {"context": hello.context, "model_context": hello.model_context}
        return {"url": self._url, **described, "slots": self._slots(status)}

    def _slots(self, status: WorkerStatus) -> int:
        """Without workers of its own, these are the slots of the first one that joined."""
        return status.hello.slots * max(1, self._settings.workers) if status.hello else 0

    def text(self, status: WorkerStatus) -> str:
        """Return the message for the first worker that is ready; empty if the gateway does not listen yet."""
        if not self._url:
            self.postponed = self.postponed or status
            return ""
        hello, ready = status.hello, status.ready
        model = hello.model if hello else ""
        where = f" ({hello.backend} on {hello.device}, {self._slots(status)} at a time)" if hello else ""
        context = []
        if self._models:
            context = self._lines()
        elif hello and hello.context:
            context = [f"Context: {_context(hello.context, hello.model_context, hello.context_bound)}"]
        serves = ready.capabilities if ready else Capabilities()
        if not serves.text:
            context.append("It has no tokenizer: prompts and answers are token ids.")
        return "\n".join(
            [
                f"Ready: {model} is served on {self._url}{where}",
                *context,
                "",
                "Try it:",
                "  "
                + curl_line(self._url, model, serves, key=bool(self._settings.api_key or self._settings.api_keys_file)),
                *([f"Chat with it in a browser: {self._url}/"] if serves.chat and not socket_path(self._url) else []),
                "Stop it with Ctrl-C.",
            ]
        )

    def _lines(self) -> list[str]:
        """One line for each model: when it is loaded, and its context."""
        lines = []
        for each in self._models:
            when = "loaded at the start" if each.load == "start" else "loaded by its first request"
            known = each.context is not None
            context = _context(each.context or 0, each.model_context or 0, each.context_bound)
            lines.append(f"  {each.name}: {when}, context {context if known else 'known when it is downloaded'}")
        return lines

    def on_demand(self, models: Sequence[str]) -> str:
        """Return the message of a server whose models are loaded by their first requests."""
        key = bool(self._settings.api_key or self._settings.api_keys_file)
        return "\n".join(
            [
                f"Ready: {', '.join(models)} are served on {self._url}, each loaded by its first request",
                *self._lines(),
                "",
                "Try it:",
                "  " + curl_line(self._url, models[0], Capabilities(chat=True), key=key),
                *([f"Chat in a browser: {self._url}/"] if not socket_path(self._url) else []),
                "Stop it with Ctrl-C.",
            ]
        )


def _context(context: int, model_context: int, bound: str) -> str:
    """Return what is said of the context: its tokens, and why it is less than the model's."""
    reasons = {
        "setting": "as `--context` says",
        "memory": "which memory allows",
        "device": "as its cache is allocated at the start: `--context` takes more",
    }
    if model_context <= context:
        return f"{context} tokens"
    return f"{context} of the model's {model_context} tokens, {reasons.get(bound, bound)}"


def curl_line(url: str, model: str, serves: Capabilities, *, key: bool) -> str:
    """Return a command that can be pasted into a shell: a request that a model with these capabilities answers."""
    route, fields = _example(serves)
    headers = ["-H 'Content-Type: application/json'"] + ['-H "Authorization: Bearer $BATON_API_KEY"'] * key
    if path := socket_path(url):
        url = f"--unix-socket {shlex.quote(path)} http://localhost"
    return f"curl {url}/v1/{route} {' '.join(headers)} -d {shlex.quote(json.dumps({'model': model} | fields))}"


def _example(serves: Capabilities) -> tuple[str, dict[str, object]]:
    """Return a route and the fields of a request."""
    question, answer = "What is the capital of France?", "The capital of France is Paris."
    if serves.generates and serves.chat:
        return "chat/completions", {"messages": [{"role": "user", "content": question}], "temperature": 0}
    if serves.generates:
        ids = {"prompt": [1, 2, 3], "return_token_ids": True}
        prompt = {"prompt": "The capital of France is"} if serves.text else ids
        return "completions", prompt | {"max_tokens": 16, "temperature": 0}
    if serves.label_names:
        return "classify", {"input": answer}
    if serves.vector_width:
        return "embeddings", {"input": answer}
    return "rerank", {"query": question, "documents": [answer, "Bread is baked."]}
