"""Key files: made private, read only when they are."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from actors.transport.keys import KEY_FILE_BYTES, KeyFileError, KeyPair, make_key, read_key, to_z85


def test_a_key_is_its_owners_alone_and_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "worker.key"
    made = make_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    read = read_key(file)
    assert (read.public, read.secret) == (made.public, made.secret)
    assert zmq.curve_public(made.secret.encode()).decode() == made.public
    assert to_z85(made.public_text.upper() + "\n") == made.public
    assert bytes.fromhex(file.read_text()) != bytes.fromhex(made.public_text)


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    before = make_key(tmp_path / "k")
    with pytest.raises(KeyFileError, match="exists"):
        make_key(tmp_path / "k")
    assert read_key(tmp_path / "k").secret == before.secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_secret_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "k"
    make_key(file)
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"mode 0{mode:o}\): make a new key, or `chmod 600"):
        read_key(file)
    file.chmod(0o400)
    assert isinstance(read_key(file), KeyPair)


@pytest.fixture
def owned_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let all open files belong to a user. This one has the number 10001."""
    real = os.fstat

    def own(user: int) -> None:
        monkeypatch.setattr(os, "fstat", lambda descriptor: os.stat_result([*real(descriptor)[:4], user, *[0] * 5]))

    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    return own


def test_another_users_secret_is_refused(tmp_path: Path, owned_by: Callable[[int], None]) -> None:
    make_key(tmp_path / "k")
    owned_by(10002)
    with pytest.raises(KeyFileError, match="another user"):
        read_key(tmp_path / "k")


@pytest.mark.parametrize(("mode", "accepted"), [(0o400, True), (0o440, True), (0o460, False), (0o444, False)])
def test_a_mounted_secret_of_root_is_read_by_its_group(
    tmp_path: Path, owned_by: Callable[[int], None], mode: int, accepted: bool
) -> None:
    """Kubernetes mounts the files of a Secret so, with `fsGroup`."""
    file = tmp_path / "k"
    make_key(file)
    file.chmod(mode)
    owned_by(0)
    if accepted:
        assert isinstance(read_key(file), KeyPair)
    else:
        with pytest.raises(KeyFileError, match=f"mode 0{mode:o}"):
            read_key(file)


def test_a_large_file_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "k"
    file.touch(0o600)
    file.write_text("0" * (KEY_FILE_BYTES + 1))
    with pytest.raises(KeyFileError, match=f"over the bound of {KEY_FILE_BYTES} bytes"):
        read_key(file)
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        to_z85(file.read_text())


@pytest.mark.parametrize("text", ["", "00", "g" * 64, "0" * 63, "0" * 65, "\xff" * 64])
def test_what_is_no_key_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "k"
    file.touch(0o600)
    file.write_bytes(text.encode())
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        read_key(file)
    with pytest.raises(KeyFileError, match="--server-key: a key has 64"):
        to_z85(text, "--server-key")


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(KeyFileError, match="cannot be written"):
        make_key(tmp_path / "none" / "k")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyFileError, match="cannot be written: No space left"):
        make_key(tmp_path / "k")
    assert list(tmp_path.iterdir()) == []
