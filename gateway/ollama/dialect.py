"""Ollama's API as a dialect."""

import time

from gateway.http.conventions import HttpConventions
from gateway.ollama.decoding import OllamaDecoder
from gateway.ollama.errors import ERRORS
from gateway.ollama.models import OllamaModels
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect


def ollama_dialect(router: Router, settings: GatewaySettings) -> Dialect:
    """The dialect over a router's models."""
    decoder = OllamaDecoder(router, settings)
    return Dialect(
        conventions=HttpConventions(ERRORS),
        generation={"/api/chat": decoder.chat, "/api/generate": decoder.generate},
        routes=OllamaModels(router, settings, created=int(time.time())).routes(),
        prefixes=("/api",),
    )
