"""The gateway whose port another one takes over: found, and asked to leave, over its own HTTP interface."""

from typing import Any

import httpx
import structlog

from cli.invitation import base_url
from cli.settings import Settings

_log = structlog.get_logger("cli.predecessor")


class HttpPredecessor:
    """Implements `gateway.daemon.Predecessor` for a gateway on the address of these settings."""

    def __init__(self, settings: Settings) -> None:
        key = settings.admin_key or settings.api_key
        self._client = httpx.AsyncClient(
            base_url=base_url(settings.host, settings.port),
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=10.0,
            trust_env=False,
        )
        self._pid: int | None = None

    async def meet(self) -> None:
        """Learn its process, and keep the connection: another one may lead to ourselves."""
        answer = await self._ask("GET", "/admin/gateway")
        self._pid = None if answer is None else answer.get("pid")

    async def relieve(self) -> None:
        """Ask it to leave, if there was one."""
        if self._pid is not None and await self._ask("POST", "/admin/leave", {"pid": self._pid}) is not None:
            _log.info("took_over", predecessor=self._pid)
        await self._client.aclose()

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        try:
            answer = await self._client.request(method, path, json=body)
            answer.raise_for_status()
            value: dict[str, Any] = answer.json()
            return value
        except (httpx.HTTPError, ValueError) as error:
            _log.error("take_over_failed", path=path, problem=str(error) or type(error).__name__)
            return None
