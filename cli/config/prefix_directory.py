"""The prefix tier of a server: its size if the settings leave that open, and its directory while the server runs."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import statvfs
from pathlib import Path

import structlog

from cli.config.errors import CommandFailed
from cli.config.model import tier_bytes
from cli.config.settings import Settings, flag
from workers.host.memory import spare_bytes
from workers.prefix_store.directory import MEMORY, StoreDirectory, default_directory, stored_bytes
from workers.prefix_store.shared_directory import DirectoryUnusable, remove_unused

MEMORY_SHARE = 1 / 16
"""Share of the free memory that a tier has at most whose size is left open."""
DISK_SHARE = 1 / 2
"""Share of the free bytes of its file system, likewise."""
LEAST_BYTES = 64 << 20
"""With fewer there is none: a long system prompt would not fit."""

_log = structlog.get_logger("cli.config.prefix_directory")


@dataclass(frozen=True, slots=True)
class PrefixTierPlan:
    """The prefix tier that a server, or a host of remote workers, has."""

    settings: Settings
    """With the size of the tier: 0 if there is none."""
    off: dict[str, str] = field(default_factory=dict)
    """Why there is none although the settings leave the size open: the `reason` and the `remedy`."""

    @classmethod
    def of(cls, settings: Settings) -> "PrefixTierPlan":
        """Choose the size if the settings leave it open."""
        if "prefix_cache_bytes" in settings.model_fields_set:
            return cls(settings)
        size, off = 0, dict[str, str]()
        if settings.prefix_cache and settings.backend != "scripted":
            size, off = _choose(settings)
        return cls(settings.model_copy(update={"prefix_cache_bytes": size}), off)

    @classmethod
    def given(cls, settings: Settings) -> "PrefixTierPlan":
        """The tier that the settings ask for: none if they leave the size open, as for a server of one command."""
        if "prefix_cache_bytes" in settings.model_fields_set:
            return cls(settings)
        return cls(settings.model_copy(update={"prefix_cache_bytes": 0}))

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the directory open, so that one in memory outlives its workers. Raises `CommandFailed` if one that the
        settings ask for cannot be used."""
        if not tier_bytes(self.settings):
            remove_unused(default_directory())
            self.report()
            yield
            return
        path = _path(self.settings)
        try:
            directory = StoreDirectory(
                path, self.settings.prefix_cache_bytes, temporary=not self.settings.prefix_cache_dir
            )
        except DirectoryUnusable as error:
            if not self.settings.sources.keys() & {"prefix_cache_bytes", "prefix_cache_dir"}:
                _log.info("prefix_tier_off", reason=str(error), remedy=_REMEDY)
                yield
                return
            raise CommandFailed(f"{flag('prefix_cache_dir')}: {error}") from error
        self.report()
        with contextlib.closing(directory):
            yield

    def report(self) -> None:
        """Log the size of the tier, or why there is none: a warning if the settings name its directory."""
        if self.off:
            log = _log.warning if self.settings.prefix_cache_dir else _log.info
            log("prefix_tier_off", **self.off)
        elif tier_bytes(self.settings):
            _log.info("prefix_tier", bytes=self.settings.prefix_cache_bytes, directory=str(_path(self.settings)))


_REMEDY = f"set {flag('prefix_cache_bytes')} and {flag('prefix_cache_dir')}, or the former to 0"


def _choose(settings: Settings) -> tuple[int, dict[str, str]]:
    """Return the bytes of a tier that takes memory from nothing else, with those that its directory has by now; or 0
    and why. Raises `CommandFailed` for a directory whose name the system does not accept."""
    path = _path(settings)
    try:
        existing = next(each for each in (path, *path.parents) if each.exists())
        system = statvfs(existing)
    except OSError as error:
        reason = f"{path} cannot be used: {error.strerror or error}"
        if settings.prefix_cache_dir:
            raise CommandFailed(f"{flag('prefix_cache_dir')}: {reason}") from error
        return 0, {"reason": reason, "remedy": _REMEDY}
    in_memory = not settings.prefix_cache_dir
    if in_memory and path.parent != MEMORY:
        return 0, {"reason": f"{MEMORY} cannot be written, or there is none", "remedy": _REMEDY}
    held = stored_bytes(path)
    room = int(MEMORY_SHARE * spare_bytes())
    reason, remedy = f"{room} bytes are a sixteenth of the free memory", _REMEDY
    free = int(DISK_SHARE * (system.f_bavail * system.f_frsize + held))
    if not in_memory or free < room:
        room, reason = free, f"{free} bytes are half of what is free in {existing}"
        if in_memory:
            remedy = f"give the container more (--shm-size), or {_REMEDY}"
    # What is there already takes nothing from anything, and is not evicted because others have used memory since.
    size = min(settings.prefix_cache_bytes, max(room, held))
    if size < LEAST_BYTES:
        return 0, {"reason": f"{reason}, fewer than {LEAST_BYTES}", "remedy": remedy}
    return size, {}


def _path(settings: Settings) -> Path:
    named = settings.prefix_cache_dir
    if not named:
        return default_directory()
    try:
        return Path(named).expanduser()
    except RuntimeError as error:  # of ~NAME
        text = f"{named}: there is no such user, or it has no home directory"
        raise CommandFailed(f"{flag('prefix_cache_dir')}: {text}") from error
