"""Sources of the adapters that requests load: folders of this machine, and repositories of the hub that the settings
allow."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.admin.adapters.adapter_files import AdapterFiles, AdapterPathRefused
from gateway.repository_names import is_allowed, repository_of

FETCH_S = 900.0
"""Time for an adapter to arrive from the hub."""
MAX_FETCHES = 2
"""Adapters that arrive from the hub at once; further ones wait."""


class AdapterFetchFailed(Exception):
    """Raised when an adapter cannot be had from the hub; the message says why. `missing` is true if the hub has none of
    this name, and `unavailable` if it may be had later."""

    def __init__(self, text: str, *, missing: bool = False, unavailable: bool = False) -> None:
        super().__init__(text)
        self.missing = missing
        self.unavailable = unavailable


FetchAdapter = Callable[[str], Awaitable[Path]]
"""Returns the folder in the hub's cache of an adapter by its hub id, after a download of what is missing, which ends
with the task. Raises `AdapterFetchFailed`."""


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    """The directory of an adapter."""

    directory: Path
    below: Path | None = None
    """The folder below which the files are that it may have links to; None: those of the settings."""


class AdapterSources:
    """Finds what requests name. Used on the event loop."""

    def __init__(self, files: AdapterFiles, repositories: Sequence[str], fetch: FetchAdapter | None) -> None:
        self._files = files
        self._repositories = repositories
        self._fetch = fetch
        self._fetches = anyio.Semaphore(MAX_FETCHES)

    async def find(self, path: str) -> FoundAdapter:
        """Return the directory of an adapter by its path or its hub id. A path that is there comes first. Raises
        `AdapterPathRefused` and `AdapterFetchFailed`."""
        try:
            return FoundAdapter(await anyio.to_thread.run_sync(self._files.find, path))
        except AdapterPathRefused as refused:
            if (repository := repository_of(path)) is None:
                raise
            if self._fetch is None or not any(is_allowed(repository, each) for each in self._repositories):
                text = f"{refused}, and `allow_lora_repos` does not allow the repository {repository!r} of the hub"
                raise AdapterPathRefused(text, missing=refused.missing) from refused
        try:
            async with self._fetches:
                with anyio.fail_after(FETCH_S):
                    directory = await self._fetch(path)
        except TimeoutError as error:
            text = f"{path} has not arrived within {FETCH_S:g} s; what has arrived is kept: try again"
            raise AdapterFetchFailed(text, unavailable=True) from error
        return FoundAdapter(directory, directory.parents[1])  # of a snapshot, whose files are links to blobs
