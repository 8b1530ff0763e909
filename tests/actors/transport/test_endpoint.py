"""Socket folders: private, short enough, gone after."""

import fcntl
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.transport.endpoint import (
    MAX_SOCKET_PATH,
    EndpointError,
    LocalEndpoint,
    check_address,
    find_endpoints,
    is_private,
    sweep,
)


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
    name_bytes = len("/baton-link-xxxxxxxx/link")
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


def test_without_a_temporary_folder_the_run_time_folder_is_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk, or where the root file system is read-only."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/absent"])
    with LocalEndpoint() as endpoint:
        assert endpoint.path.parent.parent == root
        assert sweep([str(root)]) == 0
    assert find_endpoints("gateway-1") == []


def test_no_folder_is_a_sentence() -> None:
    with pytest.raises(EndpointError, match="no folder can hold"):
        LocalEndpoint(["/does/not/exist"])


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder for folders, with a path that is short enough for a socket's on every system."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


OWNER = """
import socket, sys
from actors.transport.endpoint import LocalEndpoint
endpoint = LocalEndpoint([sys.argv[1]])
socket.socket(socket.AF_UNIX).bind(str(endpoint.path))
print(flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_killed_owner_is_swept_and_a_live_ones_is_not(root: Path) -> None:
    with (
        LocalEndpoint([str(root)]) as own,
        subprocess.Popen(
            [sys.executable, "-c", OWNER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as owner,
    ):
        assert owner.stdout is not None
        owner.stdout.readline()
        assert (sweep([str(root)]), len(os.listdir(root))) == (0, 2)
        owner.kill()
        owner.wait()
        assert sweep([str(root), str(root), "/does/not/exist", ""]) == 1
        assert list(root.iterdir()) == [own.path.parent]


def left_behind(parent: Path, name: str = "baton-link-abcd_123") -> Path:
    """A folder with a socket that nobody holds."""
    folder = parent / name
    folder.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "link"))
    return folder


def test_what_is_not_certainly_ours_and_abandoned_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind(root, "baton-chaos-abcd_123")
    left_behind(root, "baton-link-abcd_12")
    left_behind(root, "baton-link-aaaaaaaa").chmod(0o755)
    (left_behind(root, "baton-link-bbbbbbbb") / "more").touch()
    other = left_behind(root, "baton-link-cccccccc")
    (other / "link").unlink()
    (other / "link").write_text("no socket")
    elsewhere = left_behind(root, "elsewhere")
    (root / "baton-link-dddddddd").symlink_to(elsewhere)
    linked = root / "baton-link-eeeeeeee"
    linked.mkdir(0o700)
    (linked / "link").symlink_to(elsewhere / "link")
    (root / "baton-link-ffffffff").touch()
    before = sorted(root.rglob("*"))
    assert sweep([str(root)]) == 0
    ours = left_behind(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert sweep([str(root)]) == 0
    assert ours.exists()
    assert sweep([str(root)]) == 1
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_a_sweep_while_a_folder_is_made_costs_another_try(
    root: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    swept: list[int] = []
    make, lock = tempfile.mkdtemp, fcntl.flock

    def made(**options: str) -> str:
        folder: str = make(**options)
        if not swept and moment == "before it is opened":
            swept.append(sweep([str(root)]))
        return folder

    def locked(descriptor: int, how: int) -> None:
        if not swept and how == fcntl.LOCK_EX:
            swept.append(0)
            swept.append(sweep([str(root)]))
        lock(descriptor, how)

    if moment == "before it is opened":
        monkeypatch.setattr(tempfile, "mkdtemp", made)
    else:
        monkeypatch.setattr(fcntl, "flock", locked)
    descriptors = len(os.listdir("/dev/fd"))
    with LocalEndpoint([str(root)]) as local:
        assert swept[-1] == 1
        assert list(root.iterdir()) == [local.path.parent]
    assert (list(root.iterdir()), len(os.listdir("/dev/fd"))) == ([], descriptors)


@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_folder_that_cannot_be_locked_is_not_left(root: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os if call == "open" else fcntl, call, fails)
    with pytest.raises(EndpointError, match="Too many open files"):
        LocalEndpoint([str(root)])
    monkeypatch.undo()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://[::1]:65535", "ipc:///tmp/x"])
def test_an_address_of_a_link(address: str) -> None:
    check_address(address, secured=False)


@pytest.mark.parametrize(
    "address",
    ["", "h:1", "tcp://", "tcp://h", "tcp://h:", "tcp://h:x", "tcp://h:65536", "tcp://h:1/x", "tcp://[::1", "ipc://"],
)
def test_what_is_no_address_of_a_link(address: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        check_address(address, secured=True)


def test_endpoints_are_found_by_their_purpose(root: Path) -> None:
    here = [str(root)]
    with LocalEndpoint(here, "gateway-80") as one, LocalEndpoint(here, "gateway-8000"), LocalEndpoint(here):
        assert find_endpoints("gateway-80", here) == [one.path]
        assert find_endpoints("gateway-80", ["", str(root / "absent"), *here]) == [one.path]
        assert find_endpoints("gateway-1", here) == []
        (root / "baton-gateway-80-x").mkdir(mode=0o700)
        assert find_endpoints("gateway-80", here) == [one.path]
    assert find_endpoints("gateway-80", here) == []


def test_what_another_user_may_have_made_is_not_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = [str(root)]
    with LocalEndpoint(here, "gateway-80") as one:
        assert is_private(one.path)
        linked = root / "baton-gateway-80-aaaaaaaa"
        linked.symlink_to(one.path.parent)
        assert find_endpoints("gateway-80", here) == [one.path], "not the link"
        for mode in (0o701, 0o770, 0o755):
            one.path.parent.chmod(mode)
            assert find_endpoints("gateway-80", here) == []
        one.path.parent.chmod(0o700)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert find_endpoints("gateway-80", here) == []
        assert not is_private(root / "absent" / "link")


def test_the_folder_of_a_killed_gateway_is_swept(root: Path) -> None:
    with LocalEndpoint([str(root)], "gateway-65535"):
        assert sweep([str(root)]) == 0
    left = root / "baton-gateway-65535-aaaaaaaa"
    left.mkdir(mode=0o700)
    assert sweep([str(root)]) == 1
    assert not left.exists()


def test_folders_below_one_that_belongs_to_a_group_are_found_and_swept(root: Path) -> None:
    """They inherit the set-group-ID bit, as in a volume of Kubernetes with `fsGroup`."""
    root.chmod(0o2777)
    here = [str(root)]
    with LocalEndpoint(here, "gateway-80") as one:
        one.path.parent.chmod(0o2700)  # of a group of this user, the kernel sets it by itself
        assert find_endpoints("gateway-80", here) == [one.path]
    left = root / "baton-gateway-80-aaaaaaaa"
    left.mkdir(mode=0o700)
    left.chmod(0o2700)
    assert sweep(here) == 1
