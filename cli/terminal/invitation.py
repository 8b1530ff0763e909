"""What people read when they may ask: where the server is, a curl line that works as it stands, and the chat page."""

import json
import shlex

from actors.supervision.worker import WorkerStatus
from cli.settings import Settings


class Invitation:
    """Knows the address once the gateway listens, since a port of 0 is chosen by the system, and one that is to be
    taken over may not be had."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = ""
        self.postponed: WorkerStatus | None = None
        """The first worker that was ready while nobody listened."""

    def listening(self, host: str, port: int) -> None:
        """Called with the address that is listened on."""
        self._url = base_url(host, port)

    def text(self, status: WorkerStatus) -> str:
        """The invitation, for the first worker that is ready; empty while nobody listens."""
        if not self._url:
            self.postponed = self.postponed or status
            return ""
        hello, ready = status.hello, status.ready
        model = hello.model if hello else ""
        # Without workers of its own it is the first that joined; how many will, nobody knows.
        slots = hello.slots * max(1, self._settings.workers) if hello else 0
        where = f" ({hello.backend} on {hello.device}, {slots} at a time)" if hello else ""
        chat = bool(ready and ready.capabilities.chat)
        return "\n".join(
            [
                f"Ready: {model} is served on {self._url}{where}",
                "",
                "Ask it:",
                "  " + curl_line(self._url, model, chat=chat, key=bool(self._settings.api_key)),
                *([f"Chat with it in a browser: {self._url}/"] if chat else []),
                "Stop it with Ctrl-C.",
            ]
        )


def curl_line(url: str, model: str, *, chat: bool, key: bool) -> str:
    """A question to the server, to be pasted into a shell."""
    body: dict[str, object] = {"model": model}
    if chat:
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    else:
        body |= {"prompt": "The capital of France is", "max_tokens": 16}
    body["temperature"] = 0
    route = "chat/completions" if chat else "completions"
    headers = ["-H 'Content-Type: application/json'"] + ['-H "Authorization: Bearer $BATON_API_KEY"'] * key
    return f"curl {url}/v1/{route} {' '.join(headers)} -d {shlex.quote(json.dumps(body))}"


def base_url(host: str, port: int) -> str:
    """Where a person on this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
