"""Which dialect writes the error of a path."""

import pytest

from gateway.errors import RequestError
from gateway.http.errors import ErrorRenderers


class Named:
    """Implements `gateway.http.errors.ErrorRenderer` as far as it can be told from another one."""

    def status(self, error: RequestError) -> int:
        return error.status

    def body(self, error: RequestError) -> bytes:
        return error.text.encode()

    def last_events(self, error: RequestError) -> bytes:
        return self.body(error)


DEFAULT, ONE, PART = Named(), Named(), Named()


@pytest.mark.parametrize(
    ("path", "renderer"),
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
def test_the_longest_prefix_decides(path: str, renderer: Named) -> None:
    assert ErrorRenderers(DEFAULT, {"/v1/one": ONE, "/v1/one/part": PART}).for_path(path) is renderer
