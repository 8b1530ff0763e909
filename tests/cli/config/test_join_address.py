"""Addresses of gateways: what `baton worker` and `baton scale` accept as `--join`."""

import pytest

from cli.config.errors import CommandFailed
from cli.config.join_address import check_join_addresses
from protocol.bounds import MAX_GATEWAYS

WRONG = [
    "gpu1:7000",
    "http://10.0.0.1:7000",
    "ipc:///tmp/x",
    "tcp://10.0.0.1",
    "tcp://:7000",
    "tcp://10.0.0.1:",
    "tcp://10.0.0.1:0",
    "tcp://10.0.0.1:65536",
    "tcp://10.0.0.1:*",
    "tcp://10.0.0.1:http",
    "tcp://10.0.0.1:7000/",
    "tcp://10.0.0.1:7000?a",
    "tcp://10.0.0.1:7000#a",
    "tcp://me@10.0.0.1:7000",
    "tcp://[fd00::1:7000",
    "tcp://gpu 1:7000",
    "tcp://10.0.0.1:7000 tcp://10.0.0.2:7000",
    "",
]


@pytest.mark.parametrize("address", WRONG)
def test_anything_but_a_host_and_a_port_is_refused(address: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        check_join_addresses(["tcp://10.0.0.9:7000", address])
    assert str(caught.value) == f"--join: write tcp://HOST:PORT, not {address!r}"


def test_names_and_addresses_of_both_families_are_accepted() -> None:
    check_join_addresses(
        ["tcp://gpu1:1", "tcp://10.0.0.1:65535", "tcp://[fd00::1]:7000", "tcp://gpu1.example.org:7000"]
    )


def test_each_gateway_is_given_once_and_there_are_not_too_many() -> None:
    most = [f"tcp://10.0.0.1:{7000 + number}" for number in range(MAX_GATEWAYS)]
    check_join_addresses(most)
    with pytest.raises(CommandFailed, match=f"{MAX_GATEWAYS + 1} gateways are given; {MAX_GATEWAYS} is the most"):
        check_join_addresses([*most, "tcp://10.0.0.2:1"])
    with pytest.raises(CommandFailed, match="--join: a gateway is given twice; a worker joins each of them once"):
        check_join_addresses(["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000", "tcp://10.0.0.1:7000"])
