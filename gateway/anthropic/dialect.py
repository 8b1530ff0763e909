"""Anthropic's API as a dialect: messages and models."""

import time

from gateway.anthropic.decoding import MessagesDecoder
from gateway.anthropic.errors import ERRORS
from gateway.anthropic.limit_headers import anthropic_headers
from gateway.anthropic.models import AnthropicModels
from gateway.http.conventions import HttpConventions
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Dialect

PATH = "/v1/messages"


def anthropic_dialect(router: Router, settings: GatewaySettings) -> Dialect:
    """The dialect over a router's models."""
    decoder = MessagesDecoder(settings)
    return Dialect(
        conventions=HttpConventions(
            ERRORS,
            key_headers=(b"x-api-key",),
            id_headers=(b"x-request-id", b"request-id"),
            limit_headers=anthropic_headers,
        ),
        generation={PATH: decoder.messages},
        queries={f"{PATH}/count_tokens": decoder.count},
        routes=AnthropicModels(router, created=int(time.time())).routes(),
        prefixes=(PATH,),
    )
