"""`/v1/models`: OpenAI's list of models."""

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton_serve import __version__
from gateway.routing.router import Router
from gateway.streaming.key_limits import visible_models
from protocol.events import Capabilities

RanksBy = Literal["cross-encoder", "decoder", "embeddings"]


class Models:
    """Each method answers one route."""

    def __init__(self, router: Router, created: int) -> None:
        """`created`: Unix time in seconds, for all models."""
        self._router = router
        self._created = created

    def routes(self) -> list[Route]:
        """The routes of the list and of one model."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.model),
            Route("/props", self.properties),
        ]

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`: those that the client's key may use."""
        return _json(
            {"object": "list", "data": [self._model(name) for name in visible_models(self._router, request.scope)]}
        )

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`. Raises `RequestError` for an unknown one."""
        given, visible = request.path_params["id"], visible_models(self._router, request.scope)
        name = given if given in visible else self._router.models.canonical(given)
        if name not in visible:
            raise self._router.models.no_model(name, field="id", among=visible)
        return _json(self._model(name))

    async def properties(self, request: Request) -> Response:
        """`GET /props`: what clients of llama.cpp's server read of a model, `?model=` or the first. Raises
        `RequestError` for an unknown one."""
        visible = visible_models(self._router, request.scope)
        given = request.query_params.get("model") or next(iter(visible), "")
        name = given if given in visible else self._router.models.canonical(given)
        if name not in visible:
            raise self._router.models.no_model(name, among=visible)
        described, known = self._router.models.describe(name), self._router.models.capabilities(name)
        return _json(
            {
                "default_generation_settings": {"n_ctx": described.context},
                "total_slots": described.slots,
                "model_alias": name,
                "modalities": {"vision": known is not None and known.images, "audio": False},
                "build_info": f"baton {__version__}",
            }
        )

    def _model(self, name: str) -> dict[str, Any]:
        described, parent = self._router.models.describe(name), self._router.pool.parent(name)
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "baton",
            "root": parent or name,
            "parent": parent,
            "max_model_len": described.context,
            "model_context": described.model_context,
            "context_bound": described.context_bound,
            "aliases": described.aliases if parent is None else (),
            "state": described.state,
            "problem": described.problem,
            "backend": described.backend,
            "quantization": described.quantization,
            "kv_dtype": described.kv_dtype,
            "draft_model": described.draft_model,
            "slots": described.slots,
            "slots_bound": described.slots_bound,
            "adapter": described.adapter,
            "architecture": _architecture(self._router.models.capabilities(name)),
            "capabilities": _capabilities(self._router.models.capabilities(name)),
        }


def _capabilities(known: Capabilities | None) -> dict[str, Any] | None:
    """None for a model that was not loaded yet: what it can do is not known."""
    if known is None:
        return None
    return {
        "chat": known.chat,
        "tools": known.tools,
        "reasoning": known.reasoning,
        "structured_output": known.grammar,
        "logprobs": known.logprobs,
        "infill": known.infill,
        "prompt_embeds": known.embedding_width,
        "mtp": known.mtp,
        "vision": known.images,
        "embeddings": known.vector_width > 0,
        "embedding_width": known.vector_width,
        "embedding_prompts": known.pooling_prompts,
        "rerank": ranks_by(known),
        "labels": known.label_names,
        "generates": known.generates,
    }


def ranks_by(known: Capabilities) -> RanksBy | None:
    """Return what `/v1/rerank` and `/v1/score` compare texts by; None for a model that they refuse."""
    if known.pairs and known.labels == 1:
        return "decoder" if known.decoder_scores else "cross-encoder"
    return "embeddings" if known.vector_width and not known.pairs else None


def _architecture(known: Capabilities | None) -> dict[str, list[str]] | None:
    """Return the kinds of input and output of a model, under OpenRouter's names; None before it was loaded."""
    if known is None:
        return None
    return {"input_modalities": ["text", *["image"] * known.images], "output_modalities": ["text"]}


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
