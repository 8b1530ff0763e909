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
    check_prefix_tier(settings)
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


def check_prefix_tier(settings: Settings) -> None:
    """Raises `CommandFailed` for a directory that would be ignored, as no bytes are set. 0 bytes turn the tier off."""
    if settings.prefix_cache_dir and not settings.prefix_cache_bytes and "prefix_cache_bytes" not in settings.sources:
        raise CommandFailed(f"{flag('prefix_cache_dir')} needs {flag('prefix_cache_bytes')}: how much is kept there")
