"""The models, as Ollama's clients list and inspect them."""

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import invalid
from gateway.http.small_body import small_body
from gateway.ollama.answer import timestamp
from gateway.ollama.decoding import model_named
from gateway.ollama.schema import OllamaShowBody
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.key_limits import visible_models

OLLAMA_VERSION = "0.12.0"
"""The version of Ollama whose API this is: clients refuse servers that are too old for them."""
NEVER = "9999-12-31T23:59:59Z"
"""The time at which a model is unloaded that stays loaded."""


class OllamaModels:
    """Each method answers one route."""

    def __init__(self, router: Router, settings: GatewaySettings, created: int) -> None:
        """`created`: Unix time in seconds, for all models."""
        self._router = router
        self._settings = settings
        self._created = timestamp(created)

    def routes(self) -> list[Route]:
        """The routes about models."""
        return [
            Route("/api/tags", self.tags),
            Route("/api/ps", self.running),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/version", self.version),
        ]

    async def tags(self, request: Request) -> Response:
        """`GET /api/tags`."""
        models = [
            self._model(name) | {"modified_at": self._created} for name in visible_models(self._router, request.scope)
        ]
        return _json({"models": models})

    async def running(self, request: Request) -> Response:
        """`GET /api/ps`: the models that have a worker which is ready."""
        router = self._router
        names = [
            name
            for name in visible_models(self._router, request.scope)
            if router.pool.has_ready(router.models.canonical(name))
        ]
        return _json({"models": [self._model(name) | self._residence(name) for name in names]})

    async def show(self, request: Request) -> Response:
        """`POST /api/show`. Raises `RequestError` for an unknown model."""
        body = await small_body(request, OllamaShowBody, self._settings.body_timeout_s, curl_type=True)
        asked = body.model or body.name
        if not asked:
            raise invalid("model", "`model` is required")
        name = model_named(self._router, asked)
        visible = visible_models(self._router, request.scope)
        if name not in visible:
            raise self._router.models.no_model(name, among=visible)
        context = self._router.pool.context(self._router.models.canonical(name))
        return _json(
            {
                "modelfile": "",
                "parameters": "",
                "template": "",
                "details": _DETAILS,
                "model_info": {"general.architecture": "baton", "baton.context_length": context},
                "capabilities": self._capabilities(name),
                "modified_at": self._created,
            }
        )

    async def version(self, _: Request) -> Response:
        """`GET /api/version`."""
        return _json({"version": OLLAMA_VERSION})

    def _residence(self, name: str) -> dict[str, Any]:
        """When a model is unloaded if no request comes, and its context."""
        described = self._router.models.describe(name)
        expires = NEVER
        if described.keep_alive_s is not None:
            left_s = described.keep_alive_s - (described.last_used_s or 0.0)
            expires = timestamp(int(time.time() + max(0.0, left_s)))
        return {"expires_at": expires, "size_vram": 0, "context_length": described.context}

    def _capabilities(self, name: str) -> list[str]:
        """Ollama's names of what every worker of the model that has loaded it can do. Clients offer tools only to a
        model that has `tools`."""
        known = self._router.models.capabilities(name)
        tools, thinking = known is not None and known.tools, known is not None and known.reasoning
        if known is not None and not known.generates:
            return ["embedding"]
        images, infill = known is not None and known.images, known is not None and known.infill
        others = {"tools": tools, "insert": infill, "thinking": thinking, "vision": images}
        return ["completion", *(name for name, has in others.items() if has)]

    def _model(self, name: str) -> dict[str, Any]:
        hellos = [handle.status.hello for handle in self._router.pool.of(self._router.models.canonical(name))]
        digest = next((hello.model_digest for hello in hellos if hello is not None), "")
        described = self._router.models.describe(name)
        parent = self._router.pool.parent(name) or ""
        details = _DETAILS | {"parent_model": parent, "quantization_level": described.quantization}
        return {"name": name, "model": name, "size": described.bytes, "digest": digest, "details": details}


_DETAILS: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}
"""The fields that clients expect. The gateway does not know what is in a checkpoint, only how it is quantized."""


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
