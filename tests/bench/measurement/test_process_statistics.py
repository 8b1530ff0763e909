"""A benchmark without the `bench` extra."""

import importlib
import sys

import pytest


def test_without_psutil_a_benchmark_ends_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bench.measurement.process_statistics", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(SystemExit, match=r"psutil: pip install -e '\.\[bench\]'"):
        importlib.import_module("bench.measurement.process_statistics")
