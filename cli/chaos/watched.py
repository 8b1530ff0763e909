"""The workers of a running server, as its administration shows them: who can be hit, and whether all are back."""

import time
from collections.abc import Callable
from typing import Any

from cli.client.administration import Administration
from cli.config.errors import CommandFailed

LOOK_S = 0.05
"""Between two looks."""


class Watched:
    """The workers of one server, or of one model of it. Methods raise `CommandFailed` when it cannot be asked."""

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
        """As `GET /admin/workers` says."""
        found = self._client.get("/admin/workers")["workers"]
        return [each for each in found if not self._model or each["model"] == self._model]

    def active(self) -> list[dict[str, Any]]:
        """Those of this machine that serve requests now."""
        return [each for each in self.local() if each["role"] == "active" and each["state"] == "ready"]

    def standby(self) -> list[dict[str, Any]]:
        """Those of this machine that could take the place of one that is lost, the next one first."""
        return [each for each in self.local() if each["role"] == "standby" and each["state"] == "ready"]

    def local(self) -> list[dict[str, Any]]:
        """Those whose processes are of the server's machine: the number of another one's may be anybody's here."""
        return [each for each in self.workers() if each["address"] is None]

    def restart(self, worker: str) -> None:
        """Have a worker started again, and wait for it."""
        self._client.operate(f"/admin/workers/{worker}/restart", None, say=lambda _: None)

    def wait_until_gone(self, pid: int, timeout_s: float) -> None:
        """Until no worker of this machine is that process. One that was struck is listed as before until its server
        notices its end. Raises `CommandFailed` when it does not within the time."""
        waits = self._waits(timeout_s)
        while any(each["pid"] == pid for each in self.local()):
            if not waits():
                raise CommandFailed(f"the server did not notice the end of process {pid} within {timeout_s:g} s")

    def wait_until_ready(self, timeout_s: float) -> None:
        """Until every worker takes requests and has none. One that was told to stop, as by `baton admin drain`, is
        not waited for. Raises `CommandFailed` when they do not within the time, or one is given up."""
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
        """What waits from one look to the next, and is false once the time is over."""
        deadline = self._clock() + timeout_s

        def waits() -> bool:
            if self._clock() >= deadline:
                return False
            self._sleep(LOOK_S)
            return True

        return waits


def _idle(worker: dict[str, Any]) -> bool:
    return worker["state"] == "ready" and not worker["slots_active"] and not worker["queue_depth"]
