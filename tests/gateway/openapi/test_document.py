"""The OpenAPI document is valid, complete and true."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from starlette.routing import Route

from baton_serve import __version__
from gateway.admin.endpoints import Admin
from gateway.errors import STATUS, RefusalCode
from gateway.openai.answer_schema import ChatCompletion, Completion, ErrorAnswer, Model, ModelList
from gateway.openai.unsupported import OPTIONS
from gateway.openapi.document import OpenApiDocument
from gateway.openapi.operations import OPERATIONS
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode
from tests.gateway.harness.serving import Served, serving

UNROUTED = {RefusalCode.NOT_FOUND, RefusalCode.METHOD_NOT_ALLOWED}
"""Errors of paths and methods that no route has."""
GOLDEN = Path(__file__).parents[1] / "openai" / "golden"


async def served_document(served: Served, **headers: str) -> Any:
    answer = await served.client.get("/openapi.json", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def routes(served: Served) -> list[Route]:
    """Those of an app that has everything."""
    settings: Any = GatewaySettings()
    unused: Any = None
    return [*served.app._app.routes, *Admin(unused, settings).routes()]


@pytest.mark.anyio
async def test_the_served_document_is_valid_and_has_the_routes_of_the_app() -> None:
    async with serving() as served:
        document = await served_document(served)
        every = served.app._app.routes
    schemathesis.openapi.from_dict(document).validate()
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == __version__
    assert {(path, method.upper()) for path, item in document["paths"].items() for method in item} == {
        (route.path_format, method) for route in every for method in route.methods - {"HEAD"}
    }


@pytest.mark.anyio
async def test_every_route_is_described() -> None:
    async with serving() as served:
        every = {(method, route.path_format) for route in routes(served) for method in (route.methods or set())}
    assert {each for each in every if each[0] != "HEAD"} == set(OPERATIONS)


@pytest.mark.anyio
async def test_the_document_needs_the_key_and_is_made_once() -> None:
    async with serving(api_key="secret") as served:
        assert (await served.client.get("/openapi.json")).status_code == 401
        first = await served.client.get("/openapi.json", headers={"authorization": "Bearer secret"})
        again = await served.client.get("/openapi.json", headers={"authorization": "Bearer secret"})
        assert first.content == again.content
        schemes = first.json()["components"]["securitySchemes"]
        assert {each["scheme"] for each in schemes.values()} == {"bearer", "basic"}


def test_a_route_that_is_not_described_has_the_first_line_of_its_docstring() -> None:
    async def greet(_: Any) -> Any:
        """Greet the client.

        Politely."""

    document = OpenApiDocument(
        [Route("/greet/{name:path}", greet)], {}, ErrorAnswer, {"gateway.openai": OPTIONS}
    ).build("1")
    schemathesis.openapi.from_dict(document).validate()
    operation = document["paths"]["/greet/{name}"]["get"]
    assert operation["summary"] == "Greet the client."
    assert [each["name"] for each in operation["parameters"]] == ["name"]


@pytest.mark.anyio
async def test_options_without_a_type_state_their_accepted_values() -> None:
    async with serving() as served:
        schemas = (await served_document(served))["components"]["schemas"]
    body, message = schemas["ChatBody"]["properties"], schemas["ChatMessage"]["properties"]
    assert body["functions"]["enum"] == [None, []]
    assert body["mirostat"]["enum"] == [None, 0]
    assert message["annotations"]["enum"] == [None, []]
    # Options of one name, of two dialects.
    assert schemas["ResponsesBody"]["properties"]["context_management"]["enum"] == [None, []]
    assert {} in schemas["MessagesBody"]["properties"]["context_management"]["enum"]
    assert schemas["FunctionDefinition"]["properties"]["allowed_callers"]["enum"] == [None, [], ["direct"]]
    assert schemas["ClientTool"]["properties"]["allowed_callers"]["enum"] == [None, ["direct"]]
    assert schemas["ModelOptions"]["properties"]["mirostat"]["enum"] == [None, 0]
    assert schemas["ChatBody"]["additionalProperties"] is False
    assert schemas["ChatBody"]["required"] == ["messages"]


def test_every_code_is_documented_somewhere() -> None:
    assert {code for operation in OPERATIONS.values() for code in operation.codes} == set(STATUS) - UNROUTED


def test_what_cannot_be_resumed_lists_no_error_of_resuming() -> None:
    resuming = {*OPERATIONS["GET", "/v1/streams/{id}"].errors} - {*OPERATIONS["POST", "/v1/completions"].errors}
    assert not resuming
    score = {*OPERATIONS["POST", "/v1/score"].errors}
    assert RefusalCode.STREAM_NOT_FOUND not in score
    assert {ErrorCode.CONTEXT, RefusalCode.MODEL_NOT_FOUND} < score


ANSWERS: list[tuple[str, Any]] = [
    *((f"chat_whole{kind}", ChatCompletion) for kind in ("", "_choices", "_logprobs", "_tokens")),
    *((f"completion_whole{kind}", Completion) for kind in ("", "_choices", "_logprobs", "_tokens")),
    ("continued_whole", ChatCompletion),
    ("models", ModelList),
    ("model", Model),
]


@pytest.mark.parametrize(("name", "kind"), ANSWERS, ids=[name for name, _ in ANSWERS])
def test_recorded_answers_have_their_types(name: str, kind: Any) -> None:
    body = (GOLDEN / f"{name}.http").read_bytes().partition(b"\n\n")[2]
    msgspec.json.decode(body, type=kind)


REFUSED = sorted(path.stem for path in GOLDEN.glob("*.http") if re.match(r"(refused|failed)_(?!in_stream)", path.stem))


@pytest.mark.parametrize("name", REFUSED)
def test_recorded_errors_have_their_type(name: str) -> None:
    body = (GOLDEN / f"{name}.http").read_bytes().partition(b"\n\n")[2]
    error = msgspec.json.decode(body, type=ErrorAnswer)
    assert error.error.code in set(map(str, STATUS))
