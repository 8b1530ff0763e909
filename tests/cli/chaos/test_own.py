"""A server of one's own that cannot be started is said to be so."""

from pathlib import Path
from typing import NoReturn

import pytest

from cli.chaos.own import own_server
from cli.model import ChosenModel
from cli.options import CommandFailed
from cli.settings import Settings


def broken(settings: Settings, model: ChosenModel) -> NoReturn:
    raise RuntimeError(f"{model.name} was told to fail on port {settings.port}")


def test_a_server_that_ends_before_it_listens_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"backend": "scripted", "host": "192.0.2.1", "port": 8000, "listen_workers": "tcp://192.0.2.1:1"}
    with (
        pytest.raises(CommandFailed, match="the server ended before it listened"),
        own_server(options, broken, log=log),
    ):
        pass
    assert "scripted was told to fail on port 0" in log.read_text(), "whatever its settings say, it is on a free one"
