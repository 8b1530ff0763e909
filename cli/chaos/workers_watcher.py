"""Watches the workers of a running server through its administration routes."""

import time
from collections.abc import Callable
from typing import Any

from cli.client.administration import Administration
from cli.config.errors import CommandFailed

POLL_S = 0.05
"""Between two requests for the list of workers."""


class WorkersWatcher:
    """The workers of a server, or those of one of its models. All methods raise `CommandFailed` if a request fails."""

    def __init__(
        self,
        client: Administration,
        model: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._model = model
        self._clock = clock
        self._sleep = sleep

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers as `GET /admin/workers` lists them."""
        found = self._client.get("/admin/workers")["workers"]
        return [each for each in found if not self._model or each["model"] == self._model]

    def active(self) -> list[dict[str, Any]]:
        """Return the workers of this machine that serve requests now."""
        return [each for each in self.local() if each["role"] == "active" and each["state"] == "ready"]

    def standby(self) -> list[dict[str, Any]]:
        """Return the ready standby workers of this machine, the next one to be promoted first."""
        return [each for each in self.local() if each["role"] == "standby" and each["state"] == "ready"]

    def local(self) -> list[dict[str, Any]]:
        """Return the workers of this machine. The process id of a remote worker may belong to any process here."""
        return [each for each in self.workers() if each["address"] is None]

    def restart(self, worker: str) -> None:
        """Restart a worker, and wait until it has restarted."""
        self._client.operate(f"/admin/workers/{worker}/restart", None, say=lambda _: None)

    def wait_until_gone(self, pid: int, timeout_s: float) -> None:
        """Wait until no worker of this machine has this process id.

        A worker that was killed is listed as before until the server notices its end. Raises `CommandFailed` if the
        server does not notice it within the time.
        """
        waits = self._waits(timeout_s)
        while any(each["pid"] == pid for each in self.local()):
            if not waits():
                raise CommandFailed(f"the server did not notice the end of process {pid} within {timeout_s:g} s")

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until every worker is ready and idle. Workers that were stopped, as by `baton admin drain`, are ignored.

        Raises `CommandFailed` if one is given up, or not ready within the time.
        """
        waits = self._waits(timeout_s)
        while waiting := [each for each in self.workers() if each["state"] != "stopped" and not _idle(each)]:
            for each in waiting:
                if each["state"] == "given_up":
                    raise CommandFailed(f"the server has given {each['name']} up: {each['reason']}")
            if not waits():
                states = ", ".join(
                    f"{each['name']} is {each['state']} ({each['reason'] or 'busy'})" for each in waiting
                )
                raise CommandFailed(f"the workers did not become ready within {timeout_s:g} s: {states}")

    def _waits(self, timeout_s: float) -> Callable[[], bool]:
        """Return a function that sleeps until the next poll, and returns False once the time is over."""
        deadline = self._clock() + timeout_s

        def waits() -> bool:
            if self._clock() >= deadline:
                return False
            self._sleep(POLL_S)
            return True

        return waits


def _idle(worker: dict[str, Any]) -> bool:
    return worker["state"] == "ready" and not worker["slots_active"] and not worker["queue_depth"]
