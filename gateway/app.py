"""The gateway as an ASGI app."""

import time
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from actors.actor import Ref
from gateway.admin.endpoints import Admin, Succession
from gateway.admin.status import Status
from gateway.fleet.hand_over import HandOver
from gateway.fleet.messages import FleetMessage
from gateway.http.errors import ApiError, from_code
from gateway.http.front_door import Gate
from gateway.openai.decoding import RequestDecoder
from gateway.openai.endpoint import Generate
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.reply import DEFECT
from gateway.streaming.resumable import ResumableStreams
from gateway.streaming.resume_endpoint import STREAMS, PickUp
from protocol.errors import ErrorCode


def create_app(
    router: Router,
    settings: GatewaySettings,
    fleet: Ref[FleetMessage] | None = None,
    pick_up: PickUp | None = None,
    hand_over: HandOver | None = None,
) -> ASGIApp:
    """All routes over one router. It starts nothing, and runs on any ASGI server.

    Without a `fleet` there are no routes that change something about the workers, and without `hand_over` none for
    another gateway. `pick_up` is for who wants to know the streams that are kept.
    """
    decoder = RequestDecoder(settings)
    status = Status(router, settings, created=int(time.time()))
    pick_up = pick_up or PickUp(settings, ResumableStreams(settings, router.metrics))
    generate: dict[str, ASGIApp] = {
        "/v1/completions": Generate(router, settings, decoder.completion, pick_up),
        "/v1/chat/completions": Generate(router, settings, decoder.chat, pick_up),
    }

    def direct(method: str, path: str) -> ASGIApp | None:
        if method == "POST":
            return generate.get(path)
        return pick_up if path.startswith(STREAMS) and method in PickUp.METHODS else None

    routes = [
        # What they allow never gets here; what does is told what is allowed.
        *(Route(path, app, methods=["POST"]) for path, app in generate.items()),
        _streams(pick_up),
        Route("/v1/models", status.models),
        Route("/v1/models/{id:path}", status.model),
        Route("/health/live", status.live),
        Route("/health/ready", status.ready),
        Route("/metrics", status.metrics),
        Route("/admin/workers", status.workers),
        *(Admin(fleet, settings).routes() if fleet is not None else ()),
        *(Succession(hand_over, settings).routes() if hand_over is not None else ()),
        Route("/", status.page),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _defect},
    )
    # A redirect would be built from the client's own Host header.
    app.router.redirect_slashes = False
    return Gate(app, direct, settings)


def _streams(pick_up: PickUp) -> Route:
    route = Route(STREAMS + "{id:path}", pick_up)
    # Not through the argument, which adds HEAD to GET: that would take a stream from its reader, and give nothing.
    route.methods = set(PickUp.METHODS)
    return route


def _respond(error: ApiError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(error.body(), error.status, headers, "application/json")


async def _api_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return _respond(error)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    sentence = f"{request.method} {request.scope['path'][:200]}: {status.phrase.lower()}"
    if status is HTTPStatus.NOT_FOUND:
        if meant := _meant(request):
            sentence += f"; did you mean {' or '.join(meant)}?"
        elif request.scope["path"].startswith("/v1/"):
            there = [path for path in _paths(request) if path.startswith("/v1/") and "{" not in path]
            sentence += f"; this server has {', '.join(there)}"
    response = _respond(ApiError(status, sentence, status.name.lower()))
    response.headers.update(error.headers or {})
    return response


def _meant(request: Request) -> list[str]:
    """The routes of which this path lacks the beginning or the end, or has a slash too many."""
    path = request.scope["path"].rstrip("/")
    there = _paths(request)
    alike = [route for route in there if route in (path, f"/v1{path}") and route != request.scope["path"]]
    return alike or [route for route in there if path and route.startswith(f"{path}/") and "{" not in route]


def _paths(request: Request) -> list[str]:
    return [route.path for route in request.app.routes if not route.path.startswith("/admin")]


async def _defect(_: Request, error: Exception) -> Response:
    # Starlette raises `error` again after this answer, so that the server logs it.
    return _respond(from_code(ErrorCode.INTERNAL, DEFECT))
