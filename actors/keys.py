"""Key files of the links: secrets that only their owner can read, and the list of those who may connect.

A key is 32 bytes of Curve25519, written as 64 hexadecimal digits. The public one follows from the secret one, so a key
file has the secret alone, as WireGuard's have. Only this module and the link know ZeroMQ's own notation, Z85.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import zmq
from zmq.utils import z85

from protocol.bounds import MAX_NAME

GATEWAY_KEY = "gateway.key"
"""The gateway's own secret, in its folder."""
WORKERS = "workers"
"""The folder, in the gateway's, with a file for each worker that may connect: NAME.pub, its public key."""
MAX_ALLOWED = 1024
"""Workers of one allow-list."""
_SUFFIX = ".pub"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEX = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 256


class KeyFileError(Exception):
    """Raised for a key, its file or its name that cannot be used; the text says which and why."""


class KeyPair:
    """A public and a secret key, as ZeroMQ writes them (Z85, 40 characters)."""

    __slots__ = ("public", "secret")

    def __init__(self, secret: bytes) -> None:
        """From 32 secret bytes."""
        self.secret = z85.encode(secret).decode("ascii")
        self.public = zmq.curve_public(self.secret.encode("ascii")).decode("ascii")

    @property
    def public_text(self) -> str:
        """The public key as people pass it on."""
        return from_z85(self.public)


def make_key(file: Path) -> KeyPair:
    """Make a key pair and write its secret to a new file of mode 0600. Raises `KeyFileError`, also when it exists."""
    secret = z85.decode(zmq.curve_keypair()[1])
    _write(file, secret.hex(), 0o600)
    return KeyPair(secret)


def read_key(file: Path) -> KeyPair:
    """The key pair of a file that only its owner can read. Raises `KeyFileError`."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno())
            if mode.st_uid != os.geteuid():
                raise KeyFileError(f"{file} belongs to another user: a secret key is its owner's alone")
            if mode.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise KeyFileError(
                    f"{file} can be opened by others (mode {stat.S_IMODE(mode.st_mode):04o}): "
                    f"make a new key, or `chmod 600 {file}` if nobody has read it"
                )
            text = stream.read(_READ_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise KeyFileError(f"{file} cannot be read: {error.strerror}") from error
    return KeyPair(bytes.fromhex(_parse(text, str(file))))


def to_z85(text: str, where: str = "the key") -> str:
    """A public key that people wrote, for ZeroMQ. Raises `KeyFileError`."""
    return z85.encode(bytes.fromhex(_parse(text, where))).decode("ascii")


def from_z85(key: str) -> str:
    """The other way."""
    return z85.decode(key).hex()


class AllowList:
    """Who may connect, in a folder: one file a worker, so that lists are merged, copied and managed like files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / WORKERS

    def read(self) -> Mapping[str, str]:
        """Names by public key (Z85). An absent folder is an empty list. Raises `KeyFileError` when a file is no key,
        two have the same one, or they are too many."""
        names: dict[str, str] = {}
        for file in self._files():
            check_name(file.stem)
            try:
                key = to_z85(file.read_bytes()[:_READ_BYTES].decode("ascii", "replace"), str(file))
            except OSError as error:
                raise KeyFileError(f"{file} cannot be read: {error.strerror}") from error
            if key in names:
                raise KeyFileError(f"{file} has the key of {names[key]}: each worker needs its own")
            names[key] = file.stem
        return names

    def add(self, name: str, text: str) -> None:
        """Let a worker connect. Raises `KeyFileError`, also for a name or a key that is there already."""
        check_name(name)
        key = to_z85(text)
        known = self.read()
        if key in known:
            raise KeyFileError(f"that is the key of {known[key]}")
        if len(known) >= MAX_ALLOWED:
            raise KeyFileError(f"{self._folder} has {len(known)} keys already; {MAX_ALLOWED} is the most")
        _make_folder(self._folder)
        _write(self._folder / f"{name}{_SUFFIX}", from_z85(key), 0o644)

    def remove(self, name: str) -> None:
        """Let it connect no more. Raises `KeyFileError` when it is not there."""
        check_name(name)
        try:
            (self._folder / f"{name}{_SUFFIX}").unlink()
        except OSError as error:
            raise KeyFileError(f"there is no worker {name!r} in {self._folder}") from error

    def _files(self) -> list[Path]:
        try:
            files = sorted(file for file in self._folder.iterdir() if file.suffix == _SUFFIX)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise KeyFileError(f"{self._folder} cannot be read: {error.strerror}") from error
        if len(files) > MAX_ALLOWED:
            raise KeyFileError(f"{self._folder} has {len(files)} keys; {MAX_ALLOWED} is the most")
        return files


def check_name(name: str) -> None:
    """Raises `KeyFileError` for what cannot be a worker's name and a file's."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise KeyFileError(f"{name[:MAX_NAME]!r} is no worker's name: letters, digits, and . _ - after the first")


def make_gateway_key(folder: Path) -> KeyPair:
    """Make the gateway's folder (mode 0700) and its key. Raises `KeyFileError`, also when there is one."""
    _make_folder(folder)
    return make_key(folder / GATEWAY_KEY)


def _parse(text: str, where: str) -> str:
    digits = text.strip().lower()
    if not _HEX.fullmatch(digits):
        raise KeyFileError(f"{where}: a key has 64 hexadecimal digits")
    return digits


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise KeyFileError(f"{folder} cannot be made: {error.strerror}") from error


def _write(file: Path, text: str, mode: int) -> None:
    """A new file that has its mode from the start."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise KeyFileError(f"{file} exists: remove it first, if nothing needs it any more") from None
    except OSError as error:
        raise KeyFileError(f"{file} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text + "\n")
