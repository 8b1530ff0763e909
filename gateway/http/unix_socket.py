"""A Unix socket for HTTP: its file, the mode of it, and the files that servers which were killed have left."""

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.http.listener import BACKLOG, BindError, Listener
from gateway.settings import GatewaySettings

LOCK_S = 5.0
"""Time to wait for another server that starts in the same folder."""
_POLL_S = 0.02
_FREE = (errno.ECONNREFUSED, errno.ENOENT)
"""Errors of a connection to a socket file that no process listens on."""


def listen_unix(settings: GatewaySettings) -> Listener:
    """A listening socket on the path of the settings. A socket file that no process listens on is replaced. Raises
    `BindError`."""
    path = path_of(settings)
    listener = _listener(Listener(socket.AF_UNIX, socket.SOCK_STREAM), settings)
    try:
        with _alone_in(path.parent):
            _clear(path)
            mask = os.umask(0o777 & ~int(settings.unix_socket_mode, 8))
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
            listener.path = path
            listener.own_file()
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        listener.remove_file()
        raise BindError(f"cannot listen on unix:{path}: {error.strerror or error}") from error
    return listener


def adopt_unix(descriptor: int, settings: GatewaySettings) -> Listener:
    """The listening socket of this path that another gateway handed over, with the options of these settings. Its file
    belongs to the other gateway, until that one leaves: see `Listener.own_file`."""
    listener = _listener(Listener(fileno=descriptor), settings)
    listener.path = path_of(settings)
    return listener


def path_of(settings: GatewaySettings) -> Path:
    """The absolute path of the socket."""
    return Path(settings.unix_socket).expanduser().absolute()


def _listener(listener: Listener, settings: GatewaySettings) -> Listener:
    listener.max_connections = settings.max_connections
    listener.setblocking(False)
    return listener


def _clear(path: Path) -> None:
    """Remove a socket file that no process listens on. Raises `OSError`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    if code not in _FREE:
        reason = "another process listens there; --take-over takes it from a Baton that has it"
        raise OSError(errno.EADDRINUSE, os.strerror(code) if code == errno.EACCES else reason)
    path.unlink(missing_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other servers from looking at the files of the folder meanwhile. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(errno.EBUSY, f"another process has locked {folder}") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
