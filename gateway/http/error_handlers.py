"""Responses to exceptions of Starlette's routes."""

from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import INTERNAL_TEXT, RefusalCode, RequestError
from gateway.http.access.auth import LOAD_ADAPTER, UNLOAD_ADAPTER
from gateway.http.conventions import ConventionsByPath
from gateway.http.request_record import record_of
from protocol.errors import ErrorCode

_LONGEST_TYPO = 64
"""Characters of a path to which a near one is searched."""
_NEAR = 0.8
"""The least ratio of `difflib` between a path and the one that is suggested."""
_COUNTERPARTS = {
    **dict.fromkeys(
        ("/api/blobs", "/api/copy", "/api/create", "/api/delete", "/api/pull", "/api/push"),
        "models are managed by commands: `baton pull`, `baton list`, `baton rm`",
    ),
    "/generate": "/v1/completions continues a prompt",
    "/infill": "/v1/completions has a field `suffix`",
    "/is_sleeping": "/v1/models has the `state` of each model",
    "/lora-adapters": "/v1/models lists adapters; requests name one as their `model`",
    "/pooling": "/v1/embeddings computes vectors",
    "/server_info": "/v1/models describes the models",
    "/sleep": "/admin/models/{name}/unload unloads a model",
    "/slots": "/admin/workers has the slots of each worker",
    "/wake_up": "/admin/models/{name}/load loads a model",
}
"""Counterparts of routes of vLLM, llama.cpp and Ollama."""
_UNROUTED = {404: RefusalCode.NOT_FOUND, 405: RefusalCode.METHOD_NOT_ALLOWED}


class ErrorHandlers:
    """Turns exceptions of routes into responses, in the dialect of the path."""

    def __init__(self, conventions: ConventionsByPath) -> None:
        self._conventions = conventions

    def by_type(self) -> Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]:
        """The handlers, for Starlette's `exception_handlers`."""
        return {RequestError: self._refused, HTTPException: self._not_routed, Exception: self._failed}

    def _respond(self, request: Request, error: RequestError) -> Response:
        renderer = self._conventions.of(request.scope["path"]).errors
        record = record_of(request.scope)
        record.reason, error.request_id = error.code, record.request_id
        headers = {name.decode(): value.decode() for name, value in error.headers}
        return Response(renderer.body(error), renderer.status(error), headers, "application/json")

    async def _refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestError):
            raise error
        return self._respond(request, error)

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        """No route matches the path or the method."""
        if not isinstance(error, HTTPException) or error.status_code not in _UNROUTED:
            raise error
        text = f"{request.method} {request.scope['path'][:200]}: {HTTPStatus(error.status_code).phrase.lower()}"
        if error.status_code == HTTPStatus.NOT_FOUND:
            if counterpart := _COUNTERPARTS.get(request.scope["path"]):
                text += f"; {counterpart}"
            elif meant := _meant(request):
                text += f"; did you mean {' or '.join(meant)}?"
            elif request.scope["path"] in (LOAD_ADAPTER, UNLOAD_ADAPTER):
                text += "; to load adapters at run time, set `lora_dirs` or `allow_lora_repos`"
            elif request.scope["path"].startswith("/v1/"):
                there = [path for path in _paths(request) if path.startswith("/v1/") and "{" not in path]
                text += f"; this server has {', '.join(there)}"
        response = self._respond(request, RequestError(_UNROUTED[error.status_code], text))
        response.headers.update(error.headers or {})
        return response

    async def _failed(self, request: Request, _: Exception) -> Response:
        # Starlette raises the exception again after this response, so that the server logs it.
        return self._respond(request, RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT))


def _meant(request: Request) -> list[str]:
    """The routes that a path was probably meant for: one without its beginning or end, with something before it, with
    an extra slash, or misspelt."""
    path = request.scope["path"].rstrip("/")
    there = _paths(request)
    close = [each for each in (path, f"/v1{path}") if each in there and each != request.scope["path"]][:1]
    if close or not path or len(path) > _LONGEST_TYPO:
        return close
    whole = [route for route in there if "{" not in route]
    inside = [route for route in whole if route.startswith(f"{path}/")]
    # The longest, so that /v1/v1/rerank is not /rerank.
    end = max((route for route in whole if route.count("/") > 1 and path.endswith(route)), key=len, default=None)
    return inside or ([end] if end else get_close_matches(path, whole, 1, _NEAR))


def _paths(request: Request) -> list[str]:
    paths = (route.path for route in request.app.routes if not route.path.startswith("/admin"))
    return list(dict.fromkeys(paths))
