"""Join tokens: each lets one worker register a key of its own, once, under the name that the token was made for.

A token is the secret key of a CURVE key pair. The worker connects with it, which proves that it has the token without
sending it. The gateway keeps the public key only, from which the token cannot be computed.
"""

import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from actors.process.regular_file import FileTooLarge, NotRegularFile, read_regular
from actors.transport.allow_list import AllowList, Listed, check_name
from actors.transport.keys import (
    KEY_FILE_BYTES,
    KeyFileError,
    KeyPair,
    files_of,
    make_folder,
    remove_file,
    to_z85,
    write_over,
)

TOKENS = "tokens"
"""The folder, in the gateway's, with a file for each unused token: NAME.token."""
MAX_TOKENS = 256
"""Unused tokens that have not expired."""
VALID_S = 600.0
"""The default time in which a token can be used."""
MAX_VALID_S = 7 * 86400.0
PREFIX = "baton-join-"
_SUFFIX = ".token"
_TOKEN = re.compile(rf"{PREFIX}([0-9a-f]{{64}})")
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,12})")


class JoinTokens:
    """Unused tokens, in a folder: one file each, with the public key of the token and the second since 1970 in which it
    expires. There is one for each name at most."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """`folder` is the gateway's."""
        self.folder = folder / TOKENS
        self._clock = clock

    def make(self, name: str, valid_s: float = VALID_S) -> str:
        """Make a token for this name, in place of an unused one. Raises `KeyFileError`."""
        check_name(name)
        if not 1 <= valid_s <= MAX_VALID_S:
            raise KeyFileError(f"a token is valid for 1 to {MAX_VALID_S:.0f} seconds, not {valid_s:g}")
        self._remove_expired()
        if (count := len(files_of(self.folder, _SUFFIX))) >= MAX_TOKENS and not self._file(name).exists():
            raise KeyFileError(f"{self.folder} has {count} unused tokens already; {MAX_TOKENS} is the most")
        secret = secrets.token_bytes(32)
        make_folder(self.folder)
        line = f"{KeyPair(secret).public_text} {int(self._clock() + valid_s)}"
        write_over(self._file(name), line, 0o600)
        return PREFIX + secret.hex()

    def read(self) -> Listed:
        """Read the tokens that can be used now: names by public key. Raises `KeyFileError` if the system does not let
        them be read."""
        names: dict[str, str] = {}
        refused: dict[str, str] = {}
        for file in files_of(self.folder, _SUFFIX)[:MAX_TOKENS]:
            try:
                key, expires = self._parse(file)
                check_name(file.stem)
            except FileNotFoundError:
                continue  # used since the folder was read
            except KeyFileError as error:
                refused[file.name] = str(error)
            else:
                if self._clock() < expires:
                    names[key] = file.stem
        return Listed(names, refused)

    def redeem(self, token: str, key: str, allowed: AllowList) -> str:
        """Use up the token with this public key (Z85): let the worker with `key` (hexadecimal digits) connect under the
        name of the token, instead of the key that had the name. Returns the name.

        Raises `KeyFileError`. At most one call returns for one token, in any process and after a crash: the file of the
        token goes first.
        """
        name = self.read().names.get(token)
        if name is None:
            raise KeyFileError("the join token was used, was replaced, or has expired")
        own = to_z85(key)
        if own == token:
            raise KeyFileError("a join token cannot be the key of a worker")
        if (other := allowed.read().names.get(own, name)) != name:
            raise KeyFileError(f"that is the key of {other}")
        if not remove_file(self._file(name)):
            raise KeyFileError("the join token was used")
        allowed.put(name, key)
        return name

    def revoke(self, name: str) -> bool:
        """Remove the unused token of this name. Returns whether there was one. Raises `KeyFileError`."""
        check_name(name)
        return remove_file(self._file(name))

    def _parse(self, file: Path) -> tuple[str, int]:
        """The public key (Z85), and when the token expires. Raises `KeyFileError` and `FileNotFoundError`."""
        try:
            text = read_regular(file, KEY_FILE_BYTES).decode("ascii", "replace")
        except FileNotFoundError:
            raise
        except (NotRegularFile, FileTooLarge, OSError) as error:
            raise KeyFileError(f"{file.name} cannot be read: {error.strerror}") from error
        if (line := _LINE.fullmatch(text.strip())) is None:
            raise KeyFileError(f"{file.name}: a token's file has a key and the second in which it expires")
        return to_z85(line[1], file.name), int(line[2])

    def _remove_expired(self) -> None:
        for file in files_of(self.folder, _SUFFIX):
            try:
                expired = self._clock() >= self._parse(file)[1]
            except (KeyFileError, FileNotFoundError):
                continue  # `read` reports an invalid one
            if expired:
                file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"


def parse_token(text: str, where: str = "the join token") -> KeyPair:
    """The key pair of a token. Raises `KeyFileError`, whose text does not have the token."""
    if (token := _TOKEN.fullmatch(text.strip())) is None:
        raise KeyFileError(
            f"{where}: a join token is {PREFIX} and 64 hexadecimal digits, from `baton worker-keys token`"
        )
    return KeyPair(bytes.fromhex(token[1]))
