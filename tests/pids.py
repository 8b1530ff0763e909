"""The process of a worker, to send a signal to."""

from actors.supervision.worker import WorkerStatus


def pid_of(status: WorkerStatus) -> int:
    """Raises `ProcessLookupError` for a worker that has none now: in its place, 0 would be whoever runs the tests."""
    if status.pid is None:
        raise ProcessLookupError(f"worker {status.name} is {status.state}: {status.reason or 'no process'}")
    return status.pid
