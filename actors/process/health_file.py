"""A health file: its age tells an orchestrator without a protocol for it, as Kubernetes is, that a worker is ready."""

import time
from collections.abc import Mapping
from pathlib import Path

import structlog

from actors.process.service_manager import ServiceManager

_log = structlog.get_logger("actors.process.health_file")

MARK_S = 1.0
"""Least seconds between two writes."""


class HealthFile(ServiceManager):
    """The service manager and a file. The file was last written when `ready` was called last, and is removed by
    `stopping`: call `ready` again for as long as it holds."""

    def __init__(self, environment: Mapping[str, str], file: Path) -> None:
        """A file that an earlier process has left is removed. Raises `OSError` if it cannot be."""
        super().__init__(environment)
        self._file = file
        self._written_at = -MARK_S
        self._problem: str | None = None
        """Why it was not written the last time."""
        file.unlink(missing_ok=True)

    def ready(self) -> None:
        super().ready()
        now = time.monotonic()
        if now - self._written_at < MARK_S:
            return
        self._written_at = now
        try:
            self._file.touch()
        except OSError as error:
            self._not_written(error)
        else:
            self._problem = None

    def stopping(self) -> None:
        super().stopping()
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            self._not_written(error)

    def _not_written(self, error: OSError) -> None:
        """Log it, but not each second the same."""
        if error.strerror != self._problem:
            _log.warning("health_file_not_written", file=str(self._file), problem=error.strerror)
        self._problem = error.strerror
