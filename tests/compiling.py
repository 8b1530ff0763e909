"""Compiles the graphs of a runner in this process, without the compile process of the product.

The compiled graphs and the cache are the same. The compile process imports jax anew for each runner, which takes
seconds, while here jax is imported already. tests/workers/iree/build/test_compile_client.py tests the process itself,
and test_graph_registry.py the thread that uses it.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

from workers.iree.build.compile_client import Built, Group, ModuleBuilder


class CompileHere:
    """Like `workers.iree.build.compile_client.CompileProcess`, but traces in this process."""

    def __init__(self, builder: ModuleBuilder, parallel: int) -> None:
        self._builder = builder
        self._plan, self._compiler = builder.recipe.plan(), builder.recipe.compiler()
        self._pool = ThreadPoolExecutor(parallel)
        self._asked: dict[Future[Path], Group] = {}
        self._done = self._results()

    def request(self, group: Group) -> None:
        text = self._plan.module(group)
        self._asked[self._pool.submit(self._compiler.compile, text, self._builder.key(group))] = group

    def results(self, count: int) -> Iterator[Built]:
        return islice(self._done, count)

    def _results(self) -> Iterator[Built]:
        for future in as_completed(self._asked):
            yield Built(self._asked[future], future.result(), 0.0)

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def compiling_here() -> AbstractContextManager[Any]:
    """Context in which loaded runners compile in this process. Not for those that compile in the background."""

    def process(builder: ModuleBuilder, *, parallel: int, background: bool = False) -> CompileHere:
        return CompileHere(builder, parallel)

    return mock.patch.object(ModuleBuilder, "process", process)
