"""Builds the document from the app's routes and the descriptions of their operations."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.routing import Route

from gateway.errors import RETRYABLE
from gateway.openapi.operation import JSON, ApiOperation, Code, Contents

REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)}")
_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"basic": []}]
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The API key, if the server has one."},
    "basic": {"type": "http", "scheme": "basic", "description": "The API key as the password, for browsers."},
}

Operations = Mapping[tuple[str, str], ApiOperation]
"""Descriptions by method and path."""


class OpenApiDocument:
    """The document of one app."""

    def __init__(
        self,
        routes: Iterable[Route],
        operations: Operations,
        error: type,
        neutral: Mapping[str, Mapping[str, tuple[Any, ...]]],
    ) -> None:
        """`error` is the type of all errors. `neutral` has, by the package of a dialect, the accepted values of options
        that have no type."""
        self._routes = routes
        self._operations = operations
        self._error = error
        self._neutral = neutral

    def encoded(self, version: str) -> bytes:
        """The document as JSON. Takes tens of milliseconds."""
        return msgspec.json.encode(self.build(version))

    def build(self, version: str) -> dict[str, Any]:
        """The document for this version of Baton."""
        described = list(self._described())
        types = {id(kind): kind for *_, operation in described for kind in _types(operation)}
        types[id(self._error)] = self._error
        schemas, components = msgspec.json.schema_components(types.values(), ref_template=REFERENCE)
        by_type = dict(zip(types, schemas, strict=True))
        self._refine(components, _packages(types.values()))
        paths: dict[str, dict[str, Any]] = {}
        for path, method, operation in described:
            paths.setdefault(path, {})[method.lower()] = self._operation(path, method, operation, by_type)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Baton",
                "version": version,
                "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": _SCHEMES},
        }

    def _described(self) -> Iterator[tuple[str, str, ApiOperation]]:
        """Every route with its methods. HEAD is left out: it answers as GET does, without a body."""
        for route in self._routes:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                found = self._operations.get((method, route.path_format))
                if found is None:  # of a dialect that describes nothing
                    found = ApiOperation(summary=(inspect.getdoc(route.endpoint) or route.path).partition("\n")[0])
                yield route.path_format, method, found

    def _refine(self, components: dict[str, dict[str, Any]], packages: Mapping[str, str]) -> None:
        """State the accepted values of options without a type, and join the lines of descriptions. `packages`: see
        `_packages`."""
        for component, schema in components.items():
            neutral = self._neutral.get(packages.get(component, ""), {})
            if "description" in schema:
                schema["description"] = " ".join(schema["description"].split())
            for name, field in schema.get("properties", {}).items():
                if name in neutral and field == {"default": None}:
                    field["enum"] = [None, *neutral[name]]

    def _operation(self, path: str, method: str, operation: ApiOperation, by_type: Mapping[int, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
            "summary": operation.summary,
            "responses": self._responses(operation, by_type),
        }
        in_path = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _PARAMETER.findall(path)
        ]
        if parameters := [*in_path, *operation.parameters]:
            found["parameters"] = parameters
        if operation.body is not None:
            content = {JSON: {"schema": by_type[id(operation.body)]}}
            found["requestBody"] = {"required": operation.body_required, "content": content}
        found["security"] = [] if operation.open else _SECURITY
        return found

    def _responses(self, operation: ApiOperation, by_type: Mapping[int, Any]) -> dict[str, Any]:
        responses: dict[str, Any] = {}
        for status, contents in operation.answers.items():
            content = {kind: _media(body, by_type) for kind, body in contents.items()}
            responses[str(status)] = {"description": HTTPStatus(status).phrase} | (
                {"content": content} if content else {}
            )
        codes: dict[int, list[Any]] = {}
        for code in dict.fromkeys(operation.codes):
            codes.setdefault(operation.statuses[code], []).append(code)
        for status, every in sorted(codes.items()):
            error = self._error_schema(operation, every, by_type)
            response = responses.setdefault(str(status), {"description": ", ".join(map(str, every))})
            content = response.setdefault("content", {})
            other = content.get(JSON)
            content[JSON] = {"schema": error if other is None else {"anyOf": [other["schema"], error]}}
            if RETRYABLE.intersection(every):
                response["headers"] = {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds to wait."}}
        return responses

    def _error_schema(self, operation: ApiOperation, codes: Iterable[Code], by_type: Mapping[int, Any]) -> Any:
        """The schema of errors with these codes. Only the document's own type has the code as a field."""
        if operation.error is not None:
            return _media(operation.error, by_type)["schema"]
        enum = {"properties": {"error": {"properties": {"code": {"enum": [str(code) for code in codes]}}}}}
        return {"allOf": [by_type[id(self._error)], enum]}


def _media(body: Any, by_type: Mapping[int, Any]) -> dict[str, Any]:
    """The description of a body. Text has no schema: those of OpenAPI 3.1 do not describe events."""
    if isinstance(body, tuple):
        return {"schema": {"anyOf": [by_type[id(each)] for each in body]}}
    return {} if body is None else {"schema": by_type[id(body)]}


def _types(operation: ApiOperation) -> Iterator[Any]:
    """The types of all bodies of an operation."""
    every: list[Contents] = list(operation.answers.values())
    for body in (body for contents in every for body in contents.values() if body is not None):
        yield from body if isinstance(body, tuple) else (body,)
    if operation.body is not None:
        yield operation.body
    if operation.error is not None:
        yield from operation.error if isinstance(operation.error, tuple) else (operation.error,)


def _packages(types: Iterable[Any]) -> dict[str, str]:
    """The package of the dialect of each component, as `gateway.openai`: options of one name differ between them."""
    found: dict[str, str] = {}
    for kind in types:
        package = ".".join(getattr(kind, "__module__", "").split(".")[:2])
        _, components = msgspec.json.schema_components([kind])
        found |= dict.fromkeys(components, package)
    return found
