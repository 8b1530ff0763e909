"""Fixtures of the tests of settings."""

from pathlib import Path

import pytest

from cli.config.settings import Settings


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the settings of this environment, and work in an empty folder."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"BATON_{name.upper()}", raising=False)
    monkeypatch.delenv("BATON_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
