"""Directories that processes of one user share: each keeps a lock as long as it uses one."""

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path

_MOST_REMOVED = 100
"""Number of times that other processes may remove a directory while it is opened, before it cannot be made."""


class DirectoryUnusable(Exception):
    """Raised for a directory that cannot be made, or that another user could read or write; the text states which."""


def remove_unused(path: Path) -> None:
    """Remove a temporary directory that killed processes have left, unless somebody has it open."""
    try:
        _check_own(path)
        users = os.open(path / "users", os.O_RDWR | os.O_CLOEXEC)
    except (OSError, DirectoryUnusable):
        return  # there is none of this user
    try:
        remove_if_unused(path, users)
    finally:
        os.close(users)


def machine() -> str:
    """Return what identifies this machine, also in its containers, where there is such a thing."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.is_file() else socket.gethostname()


def open_shared(path: Path) -> int:
    """Make the directory if necessary, and open it as one of its users. Raises `DirectoryUnusable`."""
    removed = 0
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            _check_own(path)
            users = os.open(path / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as error:
            removed += 1
            if removed < _MOST_REMOVED:
                continue  # its last user has just removed it
            raise DirectoryUnusable(f"{path} cannot be made: {error.strerror}") from error
        except OSError as error:
            raise unusable(path, error) from error
        try:
            fcntl.flock(users, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if (path / "users").stat().st_ino == os.fstat(users).st_ino:
                    return users
        except OSError as error:
            os.close(users)
            raise unusable(path, error) from error
        os.close(users)


def _check_own(path: Path) -> None:
    """Raise `DirectoryUnusable` for what is no directory of this user alone, and `OSError`."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise DirectoryUnusable(f"{path} is not a directory of this user")
    if status.st_mode & 0o077:
        raise DirectoryUnusable(f"{path} is open to other users: its mode must be 0700")


def unusable(path: Path, error: OSError) -> DirectoryUnusable:
    """Return the error of a directory for an error of the system."""
    return DirectoryUnusable(f"{path} cannot be used: {error.strerror or error}")


def remove_if_unused(path: Path, users: int) -> None:
    """Remove a directory, of which `users` is open, unless another process has it open.

    Who opens it meanwhile waits for the lock of the file of users, which goes last, and begins anew without it.
    """
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (path / "users").stat().st_ino != os.fstat(users).st_ino:
            return  # it was removed, and made anew
        with os.scandir(path) as files:
            names = [file.name for file in files if file.name != "users"]
        for name in [*names, "users"]:
            (path / name).unlink(missing_ok=True)
        path.rmdir()
    except OSError:
        return  # somebody else has it, or has just made it anew
