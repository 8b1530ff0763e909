"""`baton worker`: what it must be told, and what it joins with."""

from pathlib import Path

import pytest

from actors.keys import make_key
from cli.options import CommandFailed
from cli.settings import Settings
from cli.worker import worker_keys


def test_it_needs_an_address_and_both_keys(tmp_path: Path) -> None:
    own, server = make_key(tmp_path / "own"), make_key(tmp_path / "server")
    given = {"join": "tcp://10.0.0.1:7000", "server_key": server.public_text, "key_file": str(tmp_path / "own")}
    keys = worker_keys(Settings(**given))
    assert (keys.public, keys.secret, keys.server) == (own.public, own.secret, server.public)
    for name in given:
        with pytest.raises(CommandFailed, match=f"--{name.replace('_', '-')} is needed"):
            worker_keys(Settings(**{**given, name: ""}))
    with pytest.raises(CommandFailed, match="--server-key: a key has 64"):
        worker_keys(Settings(**{**given, "server_key": "x"}))
    (tmp_path / "own").chmod(0o640)
    with pytest.raises(CommandFailed, match="can be opened by others"):
        worker_keys(Settings(**given))
