"""OpenAI's error object for every code."""

import json

import pytest

from gateway.errors import STATUS, RefusalCode, RequestError
from gateway.openai.errors import OpenAIErrors
from protocol.errors import ErrorCode


@pytest.mark.parametrize("code", STATUS, ids=str)
def test_every_code_has_a_type_that_the_client_knows(code: ErrorCode | RefusalCode) -> None:
    error = RequestError(code, "no", field="prompt")
    found = json.loads(OpenAIErrors().body(error))["error"]
    kind = {429: "rate_limit_error", 504: "timeout_error"}.get(STATUS[code])
    server = "server_error" if STATUS[code] >= 500 else "invalid_request_error"
    assert found == {"message": "no", "type": kind or server, "param": "prompt", "code": code.value}
    assert OpenAIErrors().status(error) == STATUS[code]


def test_the_end_of_a_stream_is_an_error_and_done() -> None:
    error = RequestError(RefusalCode.STREAM_TAKEN, "no")
    body = OpenAIErrors().body(error)
    assert OpenAIErrors().last_events(error) == b"data: " + body + b"\n\ndata: [DONE]\n\n"
