"""Endpoint of two processes of one machine: a socket file in a folder that only this user can open."""

import fcntl
import ipaddress
import os
import re
import shutil
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

_SOCKET = "link"
_NAME = re.compile("baton-(link|gateway-[0-9]{1,5})-[a-z0-9_]{8}")
"""Names that `tempfile.mkdtemp` makes of the prefixes."""
MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103
"""Bytes of `sockaddr_un.sun_path` without its closing NUL: 108 on Linux, 104 on macOS and the BSDs."""


class EndpointError(Exception):
    """Raised when no folder can hold a socket file, or an address is not one that a link may use."""


class LocalEndpoint:
    """An `ipc://` address in a fresh 0700 folder. The folder goes with `remove`; use one per incarnation. Other
    processes of this user find the endpoints of a `purpose` (`link`, or `gateway-PORT`) by `find_endpoints`.

    The folder is locked (flock(2)) until then, or until this process is gone, however it went: see `sweep`.
    """

    def __init__(self, folders: Iterable[str] | None = None, purpose: str = "link") -> None:
        """Make the folder in the first of `folders` that exists and is short enough (default: the user's run-time
        folder, the temporary folder, /tmp). Raises `EndpointError` when none is."""
        folder, lock = _make_folder(tuple(_default_folders() if folders is None else folders), _prefix(purpose))
        self._folder = folder
        self._lock: int | None = lock
        self.path = self._folder / _SOCKET
        self.address = f"ipc://{self.path}"

    def remove(self) -> None:
        """Remove the folder and what is in it. May be called again."""
        if self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _prefix(purpose: str) -> str:
    return f"baton-{purpose}-"


def find_endpoints(purpose: str, folders: Iterable[str] | None = None) -> list[Path]:
    """The socket files of this user's endpoints of a purpose, in `folders` (default: as for `LocalEndpoint`, and the
    user's run-time folder, which the environment may lack). Some may be of processes that have ended."""
    name = re.compile(re.escape(_prefix(purpose)) + "[a-z0-9_]{8}")
    roots = (*_default_folders(), f"/run/user/{os.geteuid()}") if folders is None else tuple(folders)
    found = []
    for root in dict.fromkeys(filter(None, roots)):
        try:
            there = sorted(each for each in os.listdir(root) if name.fullmatch(each))
        except OSError:
            continue  # what is not there has no endpoints
        found += [Path(root, each, _SOCKET) for each in there if is_private(Path(root, each, _SOCKET))]
    return found


def is_private(path: Path) -> bool:
    """True for a file in a folder that is no link, belongs to this user, and that others cannot open: only this user
    can have made it."""
    try:
        state = os.lstat(path.parent)
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and _is_0700(state)


def _is_0700(state: os.stat_result) -> bool:
    """The mode is 0700. A folder inherits the set-group-ID bit from volumes that Kubernetes gives to a group, where it
    lets nobody in."""
    return stat.S_IMODE(state.st_mode) & ~stat.S_ISGID == 0o700


def is_of_this_user(connection: socket.socket) -> bool:
    """True if a process of this user is at the other end of a Unix socket (unix(7), SO_PEERCRED). Where the system does
    not tell, true: the folder of the socket keeps others out."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())


def _default_folders() -> tuple[str, ...]:
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:
        temporary = ""  # nothing can be written to any of its candidates now, as on full disks
    return (os.environ.get("XDG_RUNTIME_DIR", ""), temporary, "/tmp")


def sweep(folders: Iterable[str] | None = None) -> int:
    """Remove the folders that owners who are gone have left in `folders` (default: as for `LocalEndpoint`); how many.

    One is left alone unless its name, owner and mode are those of a `LocalEndpoint` of this user, it is no link, it has
    nothing but a socket, and nobody has locked it.
    """
    removed = 0
    for parent in {each for each in (_default_folders() if folders is None else folders) if each}:
        try:
            root = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # what is not there has nothing to remove
        try:
            removed += sum(_sweep(root, name) for name in os.listdir(root) if _NAME.fullmatch(name))
        finally:
            os.close(root)
    return removed


def _sweep(root: int, name: str) -> bool:
    """Remove one folder, if it may be. A process that is creating it notices; see `_claim`."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except OSError:  # it is gone, a link, or another user's
        return False
    try:
        state = os.fstat(folder)
        if state.st_uid != os.getuid() or not _is_0700(state):
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.listdir(folder)
        if found == [_SOCKET] and stat.S_ISSOCK(os.stat(_SOCKET, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(_SOCKET, dir_fd=folder)
        os.rmdir(name, dir_fd=root)
        return True
    except OSError:  # its owner lives, or has put something else there
        return False
    finally:
        os.close(folder)


def _make_folder(folders: tuple[str, ...], prefix: str) -> tuple[Path, int]:
    """The folder, and the descriptor that locks it."""
    reasons = []
    last: OSError | None = None
    for parent in filter(None, folders):
        try:
            folder, lock = _claim(parent, prefix)
        except OSError as error:
            last = error
            reasons.append(f"{parent}: {error.strerror}")
            continue
        length = len(os.fsencode(folder / _SOCKET))
        if length <= MAX_SOCKET_PATH:
            return folder, lock
        folder.rmdir()
        os.close(lock)
        reasons.append(f"{parent}: a socket path of {length} bytes is over the system's {MAX_SOCKET_PATH}")
    raise EndpointError("no folder can hold a private socket: " + "; ".join(reasons)) from last


def _claim(parent: str, prefix: str) -> tuple[Path, int]:
    """A fresh folder and the descriptor that locks it. Raises `OSError`, also where the file system has no locks."""
    while True:  # once, and once more for each sweep that comes between its making and its lock
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # mkdtemp makes it 0700
        try:
            return folder, _lock(folder)
        except FileNotFoundError:
            continue
        except OSError:
            folder.rmdir()
            raise


def _lock(folder: Path) -> int:
    """Raises `FileNotFoundError` when a sweep was faster, which may have the lock for a moment."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.stat(folder)
    except OSError:
        os.close(lock)
        raise
    return lock


def check_address(address: str, *, secured: bool) -> None:
    """Raises `EndpointError` unless it is `ipc://`, `tcp://` to this machine, or `secured` (with CURVE keys)
    `tcp://`."""
    invalid = EndpointError(f"a link's address is ipc://PATH or tcp://HOST:PORT, not {address!r}")
    try:
        parts = urlsplit(address)
    except ValueError:
        raise invalid from None
    if parts.scheme == "ipc" and address != "ipc://":
        return
    if parts.scheme != "tcp" or not parts.hostname or not _has_port(parts) or parts.path:
        raise invalid
    if not secured and not is_loopback(parts.hostname):
        raise EndpointError(
            f"{address} leaves this machine, and plain TCP is neither private nor authenticated: "
            "use a loopback address, or give CURVE keys"
        )


def _has_port(parts: SplitResult) -> bool:
    """A number, or the star for which ZeroMQ takes a free one."""
    try:
        return parts.port is not None
    except ValueError:
        return parts.netloc.endswith(":*")


def is_loopback(host: str) -> bool:
    """The host, a name or an address, is this machine and nobody else can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
