"""The command `baton` while it loads."""

import gc

import pytest

from cli import __main__ as command


def test_imports_are_not_looked_through_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = gc.get_threshold(), []
    monkeypatch.setattr("cli.main.run", lambda: seen.append(gc.get_threshold()[0]))
    try:
        command.main()
    finally:
        gc.set_threshold(*before)
    assert seen == [command.IMPORTED]
