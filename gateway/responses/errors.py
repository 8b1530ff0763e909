"""Errors of the Responses API: OpenAI's error object, and an event of a stream."""

import msgspec

from gateway.errors import RequestError
from gateway.openai.errors import OpenAIErrors
from gateway.streaming.sse import END

_encode = msgspec.json.Encoder().encode


class ResponsesErrors(OpenAIErrors):
    """Implements `gateway.http.conventions.ErrorRenderer`."""

    def last_events(self, error: RequestError) -> bytes:
        fields = {
            "type": "error",
            "code": error.code,
            "message": error.text,
            "param": error.field,
            # The event is not numbered, as a resumed stream does not repeat it.
            "sequence_number": 0,
        }
        return b"event: error\ndata: %s%s" % (_encode(fields), END)
