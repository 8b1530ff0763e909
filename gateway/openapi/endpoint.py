"""`/openapi.json`."""

from collections.abc import Sequence

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton_serve import __version__
from gateway.anthropic import unsupported as anthropic_unsupported
from gateway.ollama import unsupported as ollama_unsupported
from gateway.openai.answer_schema import ErrorAnswer
from gateway.openai.unsupported import OPTIONS
from gateway.openapi.document import OpenApiDocument
from gateway.openapi.operations import OPERATIONS
from gateway.responses.unsupported import RESPONSES_OPTIONS


class OpenApiEndpoint:
    """Serves the document of one app."""

    def __init__(self, routes: Sequence[Route]) -> None:
        """`routes` are those that the document describes, with that of this endpoint."""
        neutral = {
            "gateway.anthropic": anthropic_unsupported.OPTIONS,
            "gateway.ollama": ollama_unsupported.OPTIONS,
            "gateway.openai": OPTIONS,
            "gateway.responses": RESPONSES_OPTIONS,
        }
        self._document = OpenApiDocument(routes, OPERATIONS, ErrorAnswer, neutral)
        self._encoded: bytes | None = None
        self._encoding = anyio.Lock()

    async def document(self, _: Request) -> Response:
        """`GET /openapi.json`. The first request builds it, on a thread: it takes tens of milliseconds."""
        async with self._encoding:
            if self._encoded is None:
                self._encoded = await anyio.to_thread.run_sync(self._document.encoded, __version__)
        return Response(self._encoded, media_type="application/json")
