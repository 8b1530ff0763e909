"""`/v1/models` as Anthropic's list of models, for clients that send `anthropic-version`."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from gateway.anthropic.errors import ERRORS
from gateway.errors import RequestError, invalid
from gateway.http.request_record import record_of
from gateway.routing.router import Router
from gateway.streaming.key_limits import visible_models

VERSION_HEADER = b"anthropic-version"
DEFAULT_LIMIT = 20
MAX_LIMIT = 1000
LIFECYCLE = "active"


class VersionedRoute(Route):
    """A route for requests with the header `anthropic-version` alone: other dialects have the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        versioned = scope["type"] == "http" and any(name == VERSION_HEADER for name, _ in scope["headers"])
        return super().matches(scope) if versioned else (Match.NONE, {})


class AnthropicModels:
    """Each method answers one route."""

    def __init__(self, router: Router, created: int) -> None:
        """`created`: Unix time in seconds, for all models."""
        self._router = router
        self._created = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def routes(self) -> list[Route]:
        """The routes of the list and of one model."""
        return [VersionedRoute("/v1/models", self.models), VersionedRoute("/v1/models/{id:path}", self.model)]

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        try:
            names, more = self._page(request)
        except RequestError as error:
            return _refused(request, error)
        page = {
            "data": [self._model(name) for name in names],
            "has_more": more,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }
        return _respond(request, 200, msgspec.json.encode(page))

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`."""
        given, visible = request.path_params["id"], visible_models(self._router, request.scope)
        name = given if given in visible else self._router.models.canonical(given)
        if name not in visible:
            return _refused(request, self._router.models.no_model(name, field="id", among=visible))
        return _respond(request, 200, msgspec.json.encode(self._model(name)))

    def _page(self, request: Request) -> tuple[list[str], bool]:
        """The names on the page that the query asks for, and whether there are more. Raises `RequestError`."""
        after, before = (self._cursor(request, name) for name in ("after_id", "before_id"))
        if after is not None and before is not None:
            raise invalid("before_id", "`before_id` and `after_id` exclude each other; send one of them")
        given = request.query_params.get("limit", str(DEFAULT_LIMIT))
        limit = int(given) if given.isascii() and given.isdecimal() and len(given) <= len(str(MAX_LIMIT)) else 0
        if not 1 <= limit <= MAX_LIMIT:
            raise invalid("limit", f"`limit` is a number from 1 to {MAX_LIMIT}")
        wanted = [*request.query_params.getlist("lifecycle"), *request.query_params.getlist("lifecycle[]")]
        names = visible_models(self._router, request.scope) if not wanted or LIFECYCLE in wanted else []
        if before is not None:
            earlier = names[:before]
            return earlier[-limit:], len(earlier) > limit
        later = names if after is None else names[after + 1 :]
        return later[:limit], len(later) > limit

    def _cursor(self, request: Request, name: str) -> int | None:
        cursor = request.query_params.get(name)
        if cursor is None:
            return None
        visible = visible_models(self._router, request.scope)
        if cursor not in visible:
            raise self._router.models.no_model(cursor, field=name, among=visible)
        return visible.index(cursor)

    def _model(self, name: str) -> dict[str, Any]:
        context = self._router.pool.context(self._router.models.canonical(name))
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": self._created,
            "lifecycle": LIFECYCLE,
            "max_input_tokens": context,
            "max_tokens": context,
        }


def _refused(request: Request, error: RequestError) -> Response:
    """The error in Anthropic's format: the path belongs to another dialect, too."""
    record = record_of(request.scope)
    record.reason = error.code
    error.request_id = record.request_id
    return _respond(request, ERRORS.status(error), ERRORS.body(error))


def _respond(request: Request, status: int, body: bytes) -> Response:
    headers = {"request-id": record_of(request.scope).request_id}
    return Response(body, status, headers, "application/json")
