"""The allow-list's answers, by the frames of ZeroMQ RFC 27."""

import pytest
import zmq
from zmq.utils import z85

from actors.transport.curve_authentication import answer

KEY = zmq.curve_keypair()[0]
REQUEST = [b"1.0", b"7", b"baton", b"10.0.0.1", b"", b"CURVE", z85.decode(KEY)]


def test_a_key_on_the_list_is_admitted_under_its_name() -> None:
    assert answer(REQUEST, {KEY.decode()}) == [b"1.0", b"7", b"200", b"OK", KEY, b""]


def test_a_key_that_is_not_is_refused() -> None:
    assert answer(REQUEST, set()) == [b"1.0", b"7", b"400", b"the key is not on the allow-list", b"", b""]


@pytest.mark.parametrize(
    "request_",
    [
        [],
        [b"1.0"],
        REQUEST[:6],
        [*REQUEST, b""],
        [b"2.0", *REQUEST[1:]],
        [*REQUEST[:5], b"NULL", REQUEST[6]],
        [*REQUEST[:6], REQUEST[6][:31]],
    ],
    ids=["nothing", "one", "six", "eight", "version", "mechanism", "short"],
)
def test_whatever_else_is_asked_is_refused(request_: list[bytes]) -> None:
    assert answer(request_, {KEY.decode()})[2] == b"400"


@pytest.mark.parametrize(("mechanism", "keys", "status"), [(b"NULL", [], b"200"), (b"CURVE", [bytes(32)], b"400")])
def test_a_socket_without_keys_lets_those_in_who_come_without(
    mechanism: bytes, keys: list[bytes], status: bytes
) -> None:
    request = [b"1.0", b"7", b"baton", b"", b"", mechanism, *keys]
    assert answer(request, None)[:3] == [b"1.0", b"7", status]
