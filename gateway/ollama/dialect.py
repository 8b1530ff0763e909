"""Ollama's API as a dialect."""

import time

from actors.actor import Ref
from gateway.http.conventions import HttpConventions
from gateway.models.messages import LoaderMessage
from gateway.ollama.decoding import OllamaDecoder
from gateway.ollama.embeddings import OllamaEmbeddings
from gateway.ollama.errors import ERRORS
from gateway.ollama.models import OllamaModels
from gateway.ollama.residence import ModelResidence
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect


def ollama_dialect(router: Router, settings: GatewaySettings, models: Ref[LoaderMessage] | None = None) -> Dialect:
    """The dialect over a router's models, which `models` loads and unloads; without it they stay as they are."""
    residence = ModelResidence(models, settings)
    decoder = OllamaDecoder(router, settings, residence)
    vectors = OllamaEmbeddings(router, settings, residence)
    return Dialect(
        conventions=HttpConventions(ERRORS, curl_type=True),
        generation={
            "/api/chat": decoder.chat,
            "/api/embed": vectors.embed,
            "/api/embeddings": vectors.embeddings,
            "/api/generate": decoder.generate,
        },
        routes=OllamaModels(router, settings, created=int(time.time())).routes(),
        prefixes=("/api",),
    )
