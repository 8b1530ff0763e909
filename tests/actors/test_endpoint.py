"""Socket folders: private, short enough, gone after."""

import os
import stat
from pathlib import Path

import pytest

from actors.endpoint import MAX_SOCKET_PATH, EndpointError, LocalEndpoint, check_address


def _folder(endpoint: LocalEndpoint) -> Path:
    return Path(endpoint.address.removeprefix("ipc://")).parent


def test_folder_is_private_fresh_and_removed() -> None:
    with LocalEndpoint() as first, LocalEndpoint() as second:
        assert first.address != second.address
        assert stat.S_IMODE(_folder(first).stat().st_mode) == 0o700
        Path(first.address.removeprefix("ipc://")).touch()
    assert not _folder(first).exists()
    first.remove()


def test_too_long_a_folder_is_passed_over(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 200)
    long.mkdir()
    endpoint = LocalEndpoint([str(long), "/tmp"])
    assert _folder(endpoint).parent == Path("/tmp")
    endpoint.remove()
    assert list(long.iterdir()) == []


def test_path_length_at_the_edge(tmp_path: Path) -> None:
    short = Path("/tmp") / f"b{os.getpid()}"
    name_bytes = len("/baton-xxxxxxxx/link")
    exact = short / ("x" * (MAX_SOCKET_PATH - len(str(short)) - 1 - name_bytes))
    exact.mkdir(parents=True)
    try:
        with LocalEndpoint([str(exact)]) as endpoint:
            assert len(endpoint.address.removeprefix("ipc://")) == MAX_SOCKET_PATH
        over = exact.with_name(exact.name + "x")
        over.mkdir()
        with pytest.raises(EndpointError, match=f"{MAX_SOCKET_PATH + 1} bytes"):
            LocalEndpoint([str(over)])
        over.rmdir()
    finally:
        exact.rmdir()
        short.rmdir()


def test_no_folder_is_a_sentence() -> None:
    with pytest.raises(EndpointError, match="no folder can hold"):
        LocalEndpoint(["/does/not/exist"])


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://[::1]:65535", "ipc:///tmp/x"])
def test_an_address_of_a_link(address: str) -> None:
    check_address(address, secured=False)


@pytest.mark.parametrize(
    "address", ["", "h:1", "tcp://", "tcp://h", "tcp://h:", "tcp://h:x", "tcp://h:65536", "tcp://h:1/x", "ipc://"]
)
def test_what_is_no_address_of_a_link(address: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        check_address(address, secured=True)
