"""Opens the export of traces, whose packages are optional."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from baton_serve import __version__

if TYPE_CHECKING:
    from gateway.tracing.otlp import OtlpTraces


class TracesUnavailable(Exception):
    """Raised when traces are to be exported and the packages for it are not installed."""


@asynccontextmanager
async def exported_traces(endpoint: str, flush_s: float) -> AsyncIterator["OtlpTraces | None"]:
    """Export traces to a URL, none if it is empty; at the end what is left, for at most `flush_s` seconds. Raises
    `TracesUnavailable`."""
    traces = _open_traces(endpoint)
    try:
        yield traces
    finally:
        if traces is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(traces.close, flush_s)


def _open_traces(endpoint: str) -> "OtlpTraces | None":
    """Raises `TracesUnavailable` without the packages of OpenTelemetry."""
    if not endpoint:
        return None
    try:
        from gateway.tracing.otlp import OtlpTraces
    except ImportError as error:
        text = f"otlp_traces_endpoint needs the packages of OpenTelemetry ({error}): pip install 'baton-serve[otel]'"
        raise TracesUnavailable(text) from error
    return OtlpTraces(endpoint, __version__, asyncio.get_running_loop().time)
