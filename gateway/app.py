"""The gateway as an ASGI app."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.admin.endpoints import Admin, Succession
from gateway.admin.status import Status
from gateway.errors import INTERNAL_TEXT, RefusalCode, RequestError
from gateway.fleet.hand_over import HandOver
from gateway.fleet.operations import Operations
from gateway.http.auth import AuthMiddleware
from gateway.http.conventions import ConventionsByPath, HttpConventions
from gateway.openai.dialect import openai_dialect
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect
from gateway.streaming.generate_endpoint import GenerateEndpoint
from gateway.streaming.resumable import ResumableStreams
from gateway.streaming.resume_endpoint import STREAMS, Elsewhere, PickUp
from protocol.errors import ErrorCode

_UNROUTED = {404: RefusalCode.NOT_FOUND, 405: RefusalCode.METHOD_NOT_ALLOWED}


def create_app(
    router: Router,
    settings: GatewaySettings,
    operations: Operations | None = None,
    hand_over: HandOver | None = None,
    streams: ResumableStreams | None = None,
    elsewhere: Elsewhere | None = None,
    dialects: Sequence[Dialect] = (),
) -> AuthMiddleware:
    """All routes over one router. It starts nothing, and runs on any ASGI server.

    Without `operations` there are no routes that change something about the workers, and without `hand_over` none for
    another gateway. `streams` are those that are kept for their clients; `elsewhere` may keep further ones. `dialects`
    are served beside OpenAI's, whose conventions hold for all paths that are not theirs.
    """
    openai = openai_dialect(router, settings)
    conventions = ConventionsByPath(openai.conventions, _by_prefix(dialects))
    status = Status(router, settings)
    streams = streams or ResumableStreams(settings, router.metrics)
    pick_up = PickUp(settings, streams, conventions.default, elsewhere)
    generate: dict[str, ASGIApp] = {
        path: GenerateEndpoint(router, settings, decode, dialect.conventions, pick_up)
        for dialect in (openai, *dialects)
        for path, decode in dialect.generation.items()
    }

    def direct(method: str, path: str) -> ASGIApp | None:
        if method == "POST":
            return generate.get(path)
        return pick_up if path.startswith(STREAMS) and method in PickUp.METHODS else None

    routes = [
        # What they allow never gets here; what does is told what is allowed.
        *(Route(path, app, methods=["POST"]) for path, app in generate.items()),
        _streams(pick_up),
        *(route for dialect in (openai, *dialects) for route in dialect.routes),
        Route("/health/live", status.live),
        Route("/health/ready", status.ready),
        Route("/metrics", status.metrics),
        Route("/admin/workers", status.workers),
        *(Admin(operations, settings).routes() if operations is not None else ()),
        *(Succession(hand_over, settings).routes() if hand_over is not None else ()),
        Route("/", status.page),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers=_ErrorHandlers(conventions).by_type(),
    )
    # A redirect would be built from the client's own Host header.
    app.router.redirect_slashes = False
    return AuthMiddleware(app, direct, settings, conventions)


def _by_prefix(dialects: Sequence[Dialect]) -> dict[str, HttpConventions]:
    return {prefix: dialect.conventions for dialect in dialects for prefix in (*dialect.generation, *dialect.prefixes)}


def _streams(pick_up: PickUp) -> Route:
    route = Route(STREAMS + "{id:path}", pick_up)
    # Not through the argument, which adds HEAD to GET: that would take a stream from its reader, and give nothing.
    route.methods = set(PickUp.METHODS)
    return route


class _ErrorHandlers:
    """Answer what the routes raise, as the dialect of the path has it."""

    def __init__(self, conventions: ConventionsByPath) -> None:
        self._conventions = conventions

    def by_type(self) -> Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]:
        """The handlers as Starlette wants them."""
        return {RequestError: self._refused, HTTPException: self._not_routed, Exception: self._failed}

    def _respond(self, request: Request, error: RequestError) -> Response:
        renderer = self._conventions.of(request.scope["path"]).errors
        headers = {name.decode(): value.decode() for name, value in error.headers}
        return Response(renderer.body(error), renderer.status(error), headers, "application/json")

    async def _refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestError):
            raise error
        return self._respond(request, error)

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        """Starlette found no route for the path, or none for the method."""
        if not isinstance(error, HTTPException) or error.status_code not in _UNROUTED:
            raise error
        text = f"{request.method} {request.scope['path'][:200]}: {HTTPStatus(error.status_code).phrase.lower()}"
        if error.status_code == HTTPStatus.NOT_FOUND:
            if meant := _meant(request):
                text += f"; did you mean {' or '.join(meant)}?"
            elif request.scope["path"].startswith("/v1/"):
                there = [path for path in _paths(request) if path.startswith("/v1/") and "{" not in path]
                text += f"; this server has {', '.join(there)}"
        response = self._respond(request, RequestError(_UNROUTED[error.status_code], text))
        response.headers.update(error.headers or {})
        return response

    async def _failed(self, request: Request, _: Exception) -> Response:
        # Starlette raises the exception again after this answer, so that the server logs it.
        return self._respond(request, RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT))


def _meant(request: Request) -> list[str]:
    """The routes of which this path lacks the beginning or the end, or has a slash too many."""
    path = request.scope["path"].rstrip("/")
    there = _paths(request)
    alike = [route for route in there if route in (path, f"/v1{path}") and route != request.scope["path"]]
    return alike or [route for route in there if path and route.startswith(f"{path}/") and "{" not in route]


def _paths(request: Request) -> list[str]:
    return [route.path for route in request.app.routes if not route.path.startswith("/admin")]
