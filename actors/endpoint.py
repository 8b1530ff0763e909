"""Where two processes of one machine meet: a socket file in a folder that only this user can open."""

import ipaddress
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

_SOCKET = "link"
MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103
"""Bytes of `sockaddr_un.sun_path` without its closing NUL: 108 on Linux, 104 on macOS and the BSDs."""


class EndpointError(Exception):
    """Raised when no folder can hold a socket file, or an address is not one that a link may use."""


class LocalEndpoint:
    """An `ipc://` address in a fresh 0700 folder. The folder goes with `remove`; use one per incarnation."""

    def __init__(self, folders: Iterable[str] | None = None) -> None:
        """Make the folder in the first of `folders` that exists and is short enough (default: the user's run-time
        folder, the temporary folder, /tmp). Raises `EndpointError` when none is."""
        self._folder = _make_folder(tuple(_default_folders() if folders is None else folders))
        self.path = self._folder / _SOCKET
        self.address = f"ipc://{self.path}"

    def remove(self) -> None:
        """Remove the folder and what is in it. May be called again."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _default_folders() -> tuple[str, ...]:
    return (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")


def _make_folder(folders: tuple[str, ...]) -> Path:
    reasons = []
    for parent in filter(None, folders):
        try:
            folder = Path(tempfile.mkdtemp(prefix="baton-", dir=parent))  # mkdtemp makes it 0700
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        length = len(os.fsencode(folder / _SOCKET))
        if length <= MAX_SOCKET_PATH:
            return folder
        folder.rmdir()
        reasons.append(f"{parent}: a socket path of {length} bytes is over the system's {MAX_SOCKET_PATH}")
    raise EndpointError("no folder can hold the worker's socket: " + "; ".join(reasons))


def check_address(address: str, *, secured: bool) -> None:
    """Raises `EndpointError` unless it is `ipc://`, `tcp://` to this machine, or `secured` (with CURVE keys) `tcp://`."""
    parts = urlsplit(address)
    if parts.scheme == "ipc" and address != "ipc://":
        return
    if parts.scheme != "tcp" or not parts.hostname or not _has_port(parts) or parts.path:
        raise EndpointError(f"a link's address is ipc://PATH or tcp://HOST:PORT, not {address!r}")
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
