"""Ollama's error object."""

import msgspec

from gateway.errors import RequestError

_encode = msgspec.json.Encoder().encode


class OllamaErrors:
    """Implements `gateway.http.conventions.ErrorRenderer`."""

    def status(self, error: RequestError) -> int:
        return error.status

    def body(self, error: RequestError) -> bytes:
        return _encode({"error": error.text})

    def last_events(self, error: RequestError) -> bytes:
        return self.body(error) + b"\n"


ERRORS = OllamaErrors()
