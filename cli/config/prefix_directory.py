"""The directory of the prefix tier: a server has it open, so that one in memory outlives its workers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cli.config.errors import CommandFailed
from cli.config.settings import Settings, flag
from workers.prefix_store.directory import DirectoryUnusable, StoreDirectory, default_directory


@contextlib.contextmanager
def prefix_directory(settings: Settings) -> Iterator[None]:
    """Keep the directory of the tier open, if there is one. Raises `CommandFailed` if it cannot be used."""
    if not (settings.prefix_cache and settings.prefix_cache_bytes):
        yield
        return
    named = settings.prefix_cache_dir
    path = Path(named).expanduser() if named else default_directory()
    try:
        directory = StoreDirectory(path, settings.prefix_cache_bytes, temporary=not named)
    except DirectoryUnusable as error:
        raise CommandFailed(f"{flag('prefix_cache_dir')}: {error}") from error
    with contextlib.closing(directory):
        yield
