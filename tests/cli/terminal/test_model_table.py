"""The table of models."""

import pytest

from cli.terminal.model_table import show_models

LOADED = {
    "id": "org/model",
    "aliases": ["small", "s"],
    "state": "loaded",
    "problem": None,
    "bytes": 1_500_000_000,
    "last_used_s": 3.2,
    "workers": 2,
    "backend": "iree",
    "context": 4096,
    "model_context": 8192,
    "keep_alive_s": 300.0,
    "draft_model": "small",
    "adapter": "support-lora",
}
UNKNOWN = {"id": "m", "aliases": [], "state": "unloaded", "bytes": 0, "workers": 1, "context": None}
FAILED = {"id": "f", "state": "failed", "problem": "no network: [the hub] cannot be reached", "context": 5}


def test_each_model_is_a_line_and_failures_are_below(capsys: pytest.CaptureFixture[str]) -> None:
    show_models([LOADED, UNKNOWN, FAILED])
    _, *lines = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert lines == [
        "org/model, small, s loaded 1.5 GB 2 iree 4096 of 8192 3 s ago 300 s",
        "m unloaded - 1 - - - -",
        "f failed - - - 5 - -",
        "small drafts tokens for org/model",
        "the adapter support-lora is applied to org/model",
        "f could not be loaded: no network: [the hub] cannot be reached",
    ]
