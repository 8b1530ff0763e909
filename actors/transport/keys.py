"""Key files of the links: secrets that only their owner can read, or that an orchestrator has mounted.

A key is 32 bytes of Curve25519, written as 64 hexadecimal digits. The public one follows from the secret one, so a key
file has the secret alone, as WireGuard's have. Only this module and the link know ZeroMQ's own notation, Z85.
"""

import os
import re
import secrets
import stat
from pathlib import Path

import zmq
from zmq.utils import z85

from actors.process.regular_file import read_regular

GATEWAY_KEY = "gateway.key"
"""The gateway's own secret, in its folder."""
_HEX = re.compile(r"[0-9a-f]{64}")
KEY_FILE_BYTES = 256
"""The most bytes of a key's file."""


class KeyFileError(Exception):
    """Raised for a key, its file or its name that cannot be used; the text names it and the reason."""


class KeyPair:
    """A public and a secret key, as ZeroMQ writes them (Z85, 40 characters)."""

    __slots__ = ("public", "secret")

    def __init__(self, secret: bytes) -> None:
        """From 32 secret bytes."""
        self.secret = z85.encode(secret).decode("ascii")
        self.public = zmq.curve_public(self.secret.encode("ascii")).decode("ascii")

    @classmethod
    def generate(cls) -> "KeyPair":
        """Make a key pair that is kept in memory only."""
        return cls(secrets.token_bytes(32))

    @property
    def public_text(self) -> str:
        """The public key as people pass it on."""
        return from_z85(self.public)


def make_key(file: Path) -> KeyPair:
    """Make a key pair and write its secret to a new file of mode 0600. Raises `KeyFileError`, also when it exists."""
    secret = z85.decode(zmq.curve_keypair()[1])
    write_new(file, secret.hex(), 0o600)
    return KeyPair(secret)


def read_key(file: Path) -> KeyPair:
    """The key pair of a file that only its owner can read, or of one of root, as orchestrators mount secrets, that only
    root can change. Raises `KeyFileError`."""
    try:
        text = read_regular(file, KEY_FILE_BYTES, lambda status: _check(status, file)).decode("ascii", "replace")
    except OSError as error:
        hint = "; `baton worker-keys` makes one" if isinstance(error, FileNotFoundError) else ""
        raise KeyFileError(f"{file} cannot be read: {error.strerror}{hint}") from error
    return KeyPair(bytes.fromhex(_parse(text, str(file))))


def _check(status: os.stat_result, file: Path) -> None:
    """Raises `KeyFileError` for a secret that is not its owner's alone. A mounted one of root is read by its group."""
    if status.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"{file} belongs to another user: a secret key is its owner's alone")
    mounted = status.st_uid != os.geteuid()
    if status.st_mode & ((stat.S_IWGRP | stat.S_IXGRP if mounted else stat.S_IRWXG) | stat.S_IRWXO):
        raise KeyFileError(
            f"{file} can be opened by others (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"make a new key, or `chmod 600 {file}` if nobody has read it"
        )


def to_z85(text: str, where: str = "the key") -> str:
    """A public key that people wrote, for ZeroMQ. Raises `KeyFileError`."""
    return z85.encode(bytes.fromhex(_parse(text, where))).decode("ascii")


def from_z85(key: str) -> str:
    """The other way."""
    return z85.decode(key).hex()


def make_gateway_key(folder: Path) -> KeyPair:
    """Make the gateway's folder (mode 0700) and its key. Raises `KeyFileError`, also when there is one."""
    make_folder(folder)
    return make_key(folder / GATEWAY_KEY)


def _parse(text: str, where: str) -> str:
    digits = text.strip().lower()
    if not _HEX.fullmatch(digits):
        raise KeyFileError(f"{where}: a key has 64 hexadecimal digits")
    return digits


def make_folder(folder: Path) -> None:
    """Make a folder of mode 0700, unless there is one. Raises `KeyFileError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFileError(f"{folder} cannot be made: {error.strerror}") from error


def write_new(file: Path, text: str, mode: int) -> None:
    """Write a line to a new file, which has its mode from the start and is there whole or not at all, whatever ends
    this process or the machine. Raises `KeyFileError`, also when it exists."""
    _write(file, text, mode, over=False)


def write_over(file: Path, text: str, mode: int) -> None:
    """As `write_new`, but in place of what the file has, if it exists."""
    _write(file, text, mode, over=True)


def _write(file: Path, text: str, mode: int, *, over: bool) -> None:
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text + "\n")
                stream.flush()
                os.fsync(descriptor)
            if over:
                os.replace(unfinished, file)
            else:
                os.link(unfinished, file)  # unlike a rename it replaces nothing
        finally:
            unfinished.unlink(missing_ok=over)
        sync_folder(file.parent)
    except FileExistsError:
        raise KeyFileError(f"{file} exists: remove it first, if nothing needs it any more") from None
    except OSError as error:
        raise KeyFileError(f"{file} cannot be written: {error.strerror}") from error


def files_of(folder: Path, suffix: str) -> list[Path]:
    """Return the files of a folder with this suffix, by name; none of an absent folder. Raises `KeyFileError`."""
    try:
        return sorted(file for file in folder.iterdir() if file.suffix == suffix)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KeyFileError(f"{folder} cannot be read: {error.strerror}") from error


def remove_file(file: Path) -> bool:
    """Remove a file, also from what a crash of the machine leaves. False if it is not there. Raises `KeyFileError`."""
    try:
        file.unlink()
        sync_folder(file.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise KeyFileError(f"{file} cannot be removed: {error.strerror}") from error
    return True


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlast a crash of the machine. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
