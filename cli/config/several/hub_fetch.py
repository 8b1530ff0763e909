"""Downloads from the hub while the server runs, each in a process of its own."""

import json
from pathlib import Path
from subprocess import PIPE
from typing import Literal

import anyio
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream

from baton_serve.start import module_command
from gateway.admin.adapters.adapter_sources import AdapterFetchFailed
from gateway.models.terms import ModelUnavailable
from protocol.hub_id import HubId
from workers.hub.errors import HubCause

REPORTED = 0.1
"""Share of a download after which its progress is logged again."""
MAX_LINE = 1 << 16
_MISSING = (HubCause.NOT_FOUND, HubCause.REVISION_NOT_FOUND)
_FINAL = (HubCause.NO_CHECKPOINT, HubCause.GATED, HubCause.UNAUTHORIZED, HubCause.DISABLED, "")
"""Causes that do not go away by themselves."""

_log = structlog.get_logger("cli.config.several.hub_fetch")


class _NotFetched(Exception):
    """Raised when the process has ended without a folder."""

    def __init__(self, problem: str, cause: str) -> None:
        super().__init__(problem)
        self.cause = cause


async def fetch(model: HubId) -> Path:
    """Return the folder of a model in the cache, after a download of what is missing. It ends with this task. Raises
    `ModelUnavailable`."""
    try:
        return await _fetch(str(model), "model")
    except _NotFetched as problem:
        raise ModelUnavailable(str(problem)) from problem


async def fetch_adapter(name: str) -> Path:
    """Return the folder of an adapter in the cache: see `gateway.admin.adapters.adapter_sources.FetchAdapter`."""
    try:
        return await _fetch(name, "adapter")
    except _NotFetched as problem:
        missing = problem.cause in _MISSING
        unavailable = not missing and problem.cause not in _FINAL
        raise AdapterFetchFailed(str(problem), missing=missing, unavailable=unavailable) from problem


async def _fetch(name: str, kind: Literal["model", "adapter"]) -> Path:
    logged = 0.0
    async with await anyio.open_process(
        module_command("workers.hub", name, kind), stdin=PIPE, stdout=PIPE, stderr=None
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        lines = BufferedByteReceiveStream(process.stdout)
        while True:
            try:
                line = json.loads(await lines.receive_until(b"\n", MAX_LINE))
            except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.EndOfStream, ValueError) as error:
                raise _NotFetched(f"the download of {name} ended without a result", str(HubCause.UNKNOWN)) from error
            match line:
                case {"path": str(path)}:
                    _log.info("model_fetched", hub=name, path=path)
                    return Path(path)
                case {"problem": str(problem), "cause": str(cause)}:
                    raise _NotFetched(problem, cause)
                case {"done": int(done), "total": int(total)} if not logged or done >= logged + REPORTED * total:
                    logged = done
                    _log.info("model_downloads", hub=name, done=done, total=total)
