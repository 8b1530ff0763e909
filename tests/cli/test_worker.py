"""`baton worker`: what it must be told, and what it joins with."""

import functools
from pathlib import Path

import anyio
import pytest

from actors.keys import make_key
from actors.link import CurveKeys
from actors.supervision import RestartPolicy
from cli.options import CommandFailed
from cli.settings import Settings
from cli.worker import keep_joined, worker_keys
from workers.joining import Joining, WorkerGaveUp


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


def test_a_worker_that_cannot_be_kept_alive_is_a_sentence(tmp_path: Path) -> None:
    own = make_key(tmp_path / "own")
    keys = CurveKeys(own.public, own.secret, server=own.public)
    command = lambda endpoint, incarnation: ["false"]  # noqa: E731
    once = RestartPolicy(max_failures=1)
    with pytest.raises(WorkerGaveUp, match="exited with status 1"):
        anyio.run(keep_joined, functools.partial(Joining, "w", command, "tcp://127.0.0.1:9", keys, policy=once))
