"""The dialect that answers a path without an answer of its own."""

import pytest

from gateway.errors import RequestError
from gateway.http.conventions import ConventionsByPath, HttpConventions


class Named:
    """Implements `gateway.http.conventions.ErrorRenderer`."""

    def status(self, error: RequestError) -> int:
        return error.status

    def body(self, error: RequestError) -> bytes:
        return error.text.encode()

    def last_events(self, error: RequestError) -> bytes:
        return self.body(error)


DEFAULT, ONE, PART = (HttpConventions(Named()) for _ in range(3))


@pytest.mark.parametrize(
    ("path", "conventions"),
    [
        ("/v1/one", ONE),
        ("/v1/one/more", ONE),
        ("/v1/one/part", PART),
        ("/v1/one/part/x", PART),
        ("/v1/ones", DEFAULT),
        ("/v1", DEFAULT),
        ("/", DEFAULT),
        ("", DEFAULT),
    ],
)
def test_the_longest_prefix_decides(path: str, conventions: HttpConventions) -> None:
    assert ConventionsByPath(DEFAULT, {"/v1/one": ONE, "/v1/one/part": PART}).of(path) is conventions
