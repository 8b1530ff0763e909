"""`/v1/models`: OpenAI's list of models."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.routing.router import Router


class Models:
    """Each method answers one route."""

    def __init__(self, router: Router, created: int) -> None:
        """`created`: Unix time in seconds, for all models."""
        self._router = router
        self._created = created

    def routes(self) -> list[Route]:
        """The routes of the list and of one model."""
        return [Route("/v1/models", self.models), Route("/v1/models/{id:path}", self.model)]

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`."""
        return _json({"object": "list", "data": [self._model(name) for name in self._router.models()]})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`. Raises `RequestError` for an unknown one."""
        name = request.path_params["id"]
        if name not in self._router.models():
            raise self._router.no_model(name, field="id")
        return _json(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "baton",
            "max_model_len": self._router.pool.context(name),
        }


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
