"""The table of models."""

import pytest

from cli.terminal.model_table import show_models

LOADED = {
    "id": "org/model",
    "aliases": ["small", "s"],
    "state": "loaded",
    "bytes": 1_500_000_000,
    "last_used_s": 3.2,
    "workers": 2,
    "backend": "iree",
    "context": 4096,
    "keep_alive_s": 300.0,
}
UNKNOWN = {
    "id": "m",
    "aliases": [],
    "state": "unloaded",
    "bytes": 0,
    "last_used_s": None,
    "workers": 1,
    "backend": None,
    "context": None,
    "keep_alive_s": None,
}


def test_each_model_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_models([LOADED, UNKNOWN])
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == [
        "org/model",
        "small,",
        "s",
        "loaded",
        "1.50",
        "2",
        "iree",
        "4096",
        "3",
        "s",
        "ago",
        "300",
        "s",
    ]
    assert second.split() == ["m", "-", "unloaded", "-", "1", "-", "-", "-", "always"]
