"""Runners whose graphs are ready."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton[iree]'")

from bench.harness import settled
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS
from bench.harness.shapes import make_model
from workers.engine.runner import Runner
from workers.iree.build.compile_client import Built
from workers.iree.runner import IreeRunner
from workers.load_options import Progress
from workers.process.backends import compile_ahead, load_runner
from workers.process.spec import WorkerSpec


def test_graphs_are_compiled_before_a_model_is_loaded(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_dir / "graphs" / "bench"  # that of tests/bench/test_smoke.py
    compiled: set[str] = set()
    loaded: list[frozenset[str]] = []

    def compiling(spec: WorkerSpec, progress: Progress, *, rare: bool) -> Iterator[Built]:
        assert not rare
        for built in compile_ahead(spec, progress, rare=rare):
            compiled.update(built.group)
            yield built

    def loading(spec: WorkerSpec, progress: Progress) -> Runner:
        loaded.append(frozenset(compiled))
        return load_runner(spec, progress)

    monkeypatch.setattr(settled, "compile_ahead", compiling)
    monkeypatch.setattr(settled, "load_runner", loading)
    spec = Setup(make_model(cache, "tiny"), cache / "graphs", SMOKE_SLOTS, SMOKE_CONTEXT).spec()
    with closing(settled.load_settled(spec)) as runner:
        assert isinstance(runner, IreeRunner)
        assert loaded == [runner.graphs.ready]
