"""The client of a server's administration routes."""

import time
from collections.abc import Callable
from typing import Any, Self

import httpx
import typer

from cli.client.server_url import refused, server_client, shown_url, unanswered, url_of
from cli.config.errors import CommandFailed
from cli.config.settings import Settings

POLL_S = 0.5
"""Between two requests for the state of a running operation."""


class Administration:
    """Sends requests to the routes under `/admin` of one server. All methods raise `CommandFailed`."""

    def __init__(self, client: httpx.Client, sleep: Callable[[float], None] = time.sleep, url: str = "") -> None:
        """`url`: the URL of the client as the user gave it."""
        self._client = client
        self._url = url
        self._sleep = sleep

    @classmethod
    def of(cls, url: str, settings: Settings, *, reads: bool = False) -> Self:
        """Connect to the server, by default the one on the host and port of the settings, with their admin key or else
        their API key. With `reads` it is the other way round: an API key changes nothing, and reads `/metrics` too."""
        url = url or url_of(settings)
        keys = (settings.api_key, settings.admin_key) if reads else (settings.admin_key, settings.api_key)
        client = server_client(url, keys[0] or keys[1], 30.0, settings.tls_cert)
        return cls(client, url=url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def server(self) -> str:
        """The URL of the server."""
        return shown_url(self._client, self._url)

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at `path`."""
        return self._request("GET", path, None)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return the JSON object at `path`; None if the server has no such route."""
        answer = self._send("GET", path, None)
        return None if answer.status_code == httpx.codes.NOT_FOUND else self._object(answer)

    def post(self, path: str) -> dict[str, Any]:
        """Return the JSON object that answers a request without parameters."""
        return self._request("POST", path, {})

    def text(self, path: str) -> str:
        """Return the text at `path`."""
        answer = self._send("GET", path, None)
        if answer.is_error:
            self._object(answer)  # which raises what it says
        return answer.text

    def operate(
        self, path: str, grace_s: float | None, *, say: Callable[[str], None] = typer.echo, **fields: str
    ) -> None:
        """Start an operation, pass each line of its progress to `say`, and wait for its end."""
        body: dict[str, Any] = {name: value for name, value in fields.items() if value}
        if grace_s is not None:
            body["grace_s"] = grace_s
        operation = self._request("POST", path, body)["operation"]
        number, said = operation["number"], 0
        while True:
            for line in operation["lines"][said:]:
                say(line)
            said = len(operation["lines"])
            if operation["number"] != number:
                raise CommandFailed(
                    "another operation has begun since then; the server's log has the outcome of this one"
                )
            if operation["outcome"] != "running":
                break
            self._sleep(POLL_S)
            operation = self.get("/admin/operation")["operation"]
        if operation["outcome"] != "done":
            raise CommandFailed(f"{operation['name']} failed")

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        return self._object(self._send(method, path, body))

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            return self._client.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise unanswered(self.server, error) from error

    def _object(self, answer: httpx.Response) -> dict[str, Any]:
        """The JSON object of an answer."""
        unlike = f"{self.server} did not answer as a Baton server does; check --url"
        try:
            value = answer.json()
            problem = value["error"]["message"] if answer.is_error else None
        except (ValueError, KeyError, TypeError) as error:
            raise CommandFailed(unlike) from error
        if problem is not None:
            raise refused(answer.status_code, problem)
        if not isinstance(value, dict):
            raise CommandFailed(unlike)
        return value
