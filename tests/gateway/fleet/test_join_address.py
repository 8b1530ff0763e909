"""The address where workers join: who can reach it, and which addresses are invalid."""

import pytest

from actors.transport.endpoint import EndpointError
from gateway.fleet.join_address import join_address, listen_at


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://10.1.2.3:1", "tcp://[::1]:1"])
def test_an_address_that_not_everybody_can_reach_is_taken(address: str) -> None:
    assert join_address(address, public=False)[1] == 1


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://8.8.8.8:1", "tcp://example.org:1"])
def test_one_that_they_can_wants_to_be_meant(address: str) -> None:
    with pytest.raises(EndpointError, match="--allow-public-workers"):
        join_address(address, public=False)
    assert join_address(address, public=True)[1] == 1


@pytest.mark.parametrize(
    "address",
    ["", "tcp://", "tcp://h", "tcp://h:x", "ipc://x", "tcp://h:70000", "tcp://h:1/x", "tcp://[::1", "tcp://h:1?x"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        join_address(address, public=True)


def test_a_port_in_use_is_a_sentence() -> None:
    with listen_at("127.0.0.1", 0) as taken, pytest.raises(EndpointError, match="cannot listen for workers"):
        listen_at("127.0.0.1", taken.getsockname()[1])


def test_the_socket_listens_where_it_was_asked_to() -> None:
    with listen_at("127.0.0.1", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert not listener.getblocking()
