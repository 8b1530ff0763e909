"""A runner all of whose graphs are ready, as benchmarks need it."""

from workers.engine.runner import Runner
from workers.process.backends import choose_backend, compile_ahead, load_runner
from workers.process.spec import WorkerSpec


def load_settled(spec: WorkerSpec) -> Runner:
    """Load a model and wait for its graphs, except those that are compiled when they are first missed.

    IREE's are compiled before the model is loaded, at this process's priority: a loaded runner compiles in the
    processor time that others leave, which on a busy machine takes minutes for each. Raises what `load_runner` raises.
    """
    if choose_backend(spec) == "iree":
        for _ in compile_ahead(spec, _unreported, rare=False):
            pass
    runner = load_runner(spec, _unreported)
    runner.settle()
    return runner


def _unreported(phase: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
