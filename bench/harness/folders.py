"""Folders of the benchmarks: what they keep between runs, and where their tables and plots go."""

import os
from pathlib import Path

from workers.process.backends import cache_dir
from workers.process.spec import WorkerSpec

RESULTS = Path("bench/results")
"""In the current folder; git ignores it."""


def default_cache() -> Path:
    """Models, compiled graphs and built peers: `bench` in Baton's cache folder, which `BATON_CACHE_DIR` names."""
    return cache_dir(WorkerSpec("bench", "bench", "", cache_dir=os.environ.get("BATON_CACHE_DIR", ""))) / "bench"


def smoke_results(name: str) -> Path:
    """The results of `--smoke`, which no one keeps: `smoke` in the cache folder."""
    return default_cache() / "smoke" / name
