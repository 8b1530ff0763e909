"""Random requests, valid and invalid, made of the served OpenAPI document. Every response is one that it documents.

`BATON_FUZZ_EXAMPLES` is the number of requests for each operation and mode. With it, they differ from run to run.
"""

import json
import os
from collections import Counter
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from tests.attacks.server import HOST, AttackedServer

ASKED = os.environ.get("BATON_FUZZ_EXAMPLES")
EXAMPLES = int(ASKED or 1)
GENERATING = 3
"""Times as many for the operations that generate."""
MAX_TOKENS = 8
"""A request may ask for no more, so that many requests take little time."""
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "min_tokens")
TIMEOUT_S = 30.0
OWN_SERVER = True
"""Random requests drain and restart its workers."""
UNROUTED = ('"code":"not_found"', '"code":"method_not_allowed"')
CHECKED = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
SETTINGS = hypothesis.settings(
    derandomize=not ASKED,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def bounded(body: Any) -> Any:
    """The body of a request for the model of the server, with few tokens."""
    if isinstance(body, dict) and "model" in body:
        body = body | {name: MAX_TOKENS for name in LIMITS if type(body.get(name)) is int and body[name] > 0}
        if isinstance(body["model"], str) and body["model"]:
            body["model"] = "scripted"
        if body.get("max_tokens") is None:
            body["max_tokens"] = MAX_TOKENS
    return body


class Fuzz:
    """Sends the requests of one mode to one server, and checks each response."""

    def __init__(self, server: AttackedServer, mode: GenerationMode) -> None:
        self._base = f"http://{HOST}:{server.port}"
        self._mode = mode
        self._session = requests.Session()
        document = json.loads(server.request("GET", "/openapi.json")[1])
        self.schema: Any = schemathesis.openapi.from_dict(document)
        self.statuses: Counter[int] = Counter()

    def run(self) -> None:
        """Send random requests to every operation. Those that change workers come last."""
        operations = [found.ok() for found in self.schema.get_all_operations()]
        for operation in sorted(operations, key=lambda each: each.path.startswith("/admin")):
            generates = operation.method == "post" and operation.path.startswith("/v1/")
            self._operate(operation, EXAMPLES * (GENERATING if generates else 1))

    def _operate(self, operation: Any, examples: int) -> None:
        cases: st.SearchStrategy[Case[Any]] = operation.as_strategy(generation_mode=self._mode)

        @hypothesis.settings(SETTINGS, max_examples=examples)
        @hypothesis.given(cases)
        def send(case: Case[Any]) -> None:
            self._send(case)

        try:
            send()
        except hypothesis.errors.Unsatisfiable:
            assert self._mode is GenerationMode.NEGATIVE, "a request without a parameter or a body is never invalid"

    def _send(self, case: Case[Any]) -> None:
        case.body = bounded(case.body)
        response = case.call(base_url=self._base, session=self._session, timeout=TIMEOUT_S)
        self.statuses[response.status_code] += 1
        if any(code in response.text for code in UNROUTED):
            return  # the random text in the path has made it another one
        case.validate_response(response, checks=CHECKED)
        assert '"code":"internal_error"' not in response.text


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_response_is_documented(server: AttackedServer, mode: GenerationMode) -> None:
    before = server.rss
    fuzz = Fuzz(server, mode)
    fuzz.run()
    grown = (server.rss - before) / 2**20
    print(f"{mode.value}: {fuzz.statuses.total()} requests, {sorted(fuzz.statuses.items())}, {grown:.1f} MiB more")
    assert fuzz.statuses[200]
    assert fuzz.statuses[400]
