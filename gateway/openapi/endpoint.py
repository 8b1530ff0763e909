"""`/openapi.json`."""

from collections.abc import Sequence

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

    async def document(self, _: Request) -> Response:
        """`GET /openapi.json`."""
        return Response(self._document.encoded(__version__), media_type="application/json")
