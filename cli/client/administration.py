"""The administration of a running server over HTTP: what `baton admin` does."""

import time
from collections.abc import Callable
from typing import Any, Self

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.client.server_url import refused, server_client, unanswered
from cli.config.errors import CommandFailed
from cli.config.settings import Settings

POLL_S = 0.5
"""Between two looks at an operation that runs."""

WIDTH = 1000
"""Of a line at most."""


class Administration:
    """The administration of one server over HTTP. All methods raise `CommandFailed` in a sentence."""

    def __init__(self, client: httpx.Client, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._sleep = sleep

    @classmethod
    def of(cls, url: str, settings: Settings) -> Self:
        """The server at that address, with the admin's key, or else the API's."""
        return cls(server_client(url, settings.admin_key or settings.api_key, 30.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """A JSON object."""
        return self._ask("GET", path, None)

    def operate(
        self, path: str, grace_s: float | None, *, say: Callable[[str], None] = typer.echo, **fields: str
    ) -> None:
        """Start an operation, `say` what it does, and wait for its end."""
        body: dict[str, Any] = {name: value for name, value in fields.items() if value}
        if grace_s is not None:
            body["grace_s"] = grace_s
        operation = self._ask("POST", path, body)["operation"]
        number, said = operation["number"], 0
        while True:
            for line in operation["lines"][said:]:
                say(line)
            said = len(operation["lines"])
            if operation["number"] != number:
                raise CommandFailed("another operation has begun since; look at the server's log for this one")
            if operation["outcome"] != "running":
                break
            self._sleep(POLL_S)
            operation = self.get("/admin/operation")["operation"]
        if operation["outcome"] != "done":
            raise CommandFailed(f"{operation['name']} failed")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        server = str(self._client.base_url).rstrip("/")
        try:
            answer = self._client.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise unanswered(server, error) from error
        try:
            value = answer.json()
            problem = value["error"]["message"] if answer.is_error else None
        except (ValueError, KeyError, TypeError) as error:
            raise CommandFailed(f"{server} did not answer as a Baton server does") from error
        if problem is not None:
            raise refused(answer.status_code, problem)
        if not isinstance(value, dict):
            raise CommandFailed(f"{server} did not answer as a Baton server does")
        return value


def _last_failure(worker: dict[str, Any]) -> str:
    last = worker["last_failure"]
    return "-" if last is None else f"{last['origin']}, {last['ago_s']:.0f} s ago: {escape(last['reason'])}"


def show_workers(found: list[dict[str, Any]]) -> None:
    """Print one line a worker."""
    columns = ("name", "model", "state", "role", "circuit", "device", "address", "pid", "restarts")
    table = Table(*columns, "slots", "queue", "why", "last failure", box=None)
    for worker in found:
        slots = f"{worker['slots_active']}/{worker['slots_total']}"
        shown = ["-" if worker[name] is None else str(worker[name]) for name in columns]
        table.add_row(*shown, slots, str(worker["queue_depth"]), escape(worker["reason"]), _last_failure(worker))
    # As wide as it is: a terminal breaks a line where it must, and no cell is cut.
    Console(highlight=False, width=WIDTH).print(table)
