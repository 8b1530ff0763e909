"""Reads the JSON bodies of routes that take a few fields, which count in no budget."""

from typing import TypeVar

import anyio
import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from gateway.errors import RefusalCode, RequestError
from gateway.http.json_body import check_json_type, decode_body

MAX_BODY_BYTES = 64 * 1024

Body = TypeVar("Body", bound=Struct)


async def small_body(request: Request, kind: type[Body], within_s: float, *, curl_type: bool = False) -> Body:
    """Read a JSON object; an empty body is an empty object. `curl_type`: as for `check_json_type`. Raises
    `RequestError`."""
    check_json_type(dict(request.headers.raw), curl_type=curl_type)
    body = bytearray()
    try:
        with anyio.fail_after(within_s):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    text = f"the body is over the bound of {MAX_BODY_BYTES} bytes"
                    raise RequestError(RefusalCode.BODY_TOO_LARGE, text)
    except (TimeoutError, ClientDisconnect) as error:
        raise RequestError(RefusalCode.TIMEOUT, "the body did not arrive in time") from error
    return decode_body(msgspec.json.Decoder(kind), bytes(body) or b"{}")
