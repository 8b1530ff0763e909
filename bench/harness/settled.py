"""Graphs that are compiled before anything is measured, as benchmarks need it."""

from workers.engine.runner import Runner
from workers.process.backends import choose_backend, compile_ahead, load_runner
from workers.process.spec import WorkerSpec


def load_settled(spec: WorkerSpec) -> Runner:
    """Load a model and wait for its graphs, except those that are compiled when they are first missed. Raises what
    `load_runner` raises."""
    compile_graphs(spec)
    runner = load_runner(spec, _unreported)
    runner.settle()
    return runner


def compile_graphs(spec: WorkerSpec) -> None:
    """Compile IREE's graphs into the cache, except those that are compiled when they are first missed.

    It is done at this process's priority: a loaded runner, and a server, compile in the processor time that others
    leave, which on a busy machine takes minutes for each.
    """
    if choose_backend(spec) == "iree":
        for _ in compile_ahead(spec, _unreported, rare=False):
            pass


def _unreported(phase: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
