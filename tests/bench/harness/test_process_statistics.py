"""What a benchmark says where the `bench` extra is not installed."""

import importlib
import sys

import pytest


def test_a_benchmark_without_psutil_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bench.harness.process_statistics", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(SystemExit, match=r"psutil: pip install -e '\.\[bench\]'"):
        importlib.import_module("bench.harness.process_statistics")
