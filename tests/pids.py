"""Process id of a worker, to send signals to."""

from actors.supervision.worker import WorkerStatus


def pid_of(status: WorkerStatus) -> int:
    """Return the worker's process id. Raises `ProcessLookupError` if it has none; a signal to 0 would reach the tests
    themselves."""
    if status.pid is None:
        raise ProcessLookupError(f"worker {status.name} is {status.state}: {status.reason or 'no process'}")
    return status.pid
