"""The download of a model from the hub into its cache."""

import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from workers.checkpoints.weight_files import missing_files
from workers.hub.errors import HubCause, HubError, disk_full, explain
from workers.hub.hub_id import HubId

FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
"""Patterns of the files that a worker reads."""
OTHER_FORMATS = ["consolidated*", "*/*"]
"""Patterns of files with the same weights for other programs."""

Report = Callable[[int, int], None]
"""Gets the bytes that have arrived and those that are to arrive, on any thread."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Effect of a download that has not begun."""

    commit: str
    """The commit that the revision is now."""
    size: int
    """Bytes of the model."""
    missing: int
    """Bytes that the cache does not have."""
    damaged: tuple[str, ...]
    """Files of the cache whose size is not the one of the hub."""


class Download:
    """Downloads one model. Files that are complete in the cache are not downloaded again.

    Two downloads of one model at once are safe: `huggingface_hub` locks each file, and renames it when it is complete.
    """

    def __init__(self, model: HubId, endpoint: str | None = None, cache: Path | None = None) -> None:
        """`endpoint` and `cache` are by default those of `huggingface_hub`."""
        from huggingface_hub import constants  # slow to import and only needed here

        own = logging.getLogger("huggingface_hub")
        for handler in own.handlers[:]:  # it prints text, beside the lines of our handler
            own.removeHandler(handler)
        self._model = model
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._cache = Path(cache or constants.HF_HUB_CACHE).expanduser()

    def cached(self) -> Path | None:
        """Return the model's folder in the cache if all its files are there and whole. Does not use the network. Raises
        `CheckpointError` for an index of weights that cannot be read."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = Path(self._snapshot(local_files_only=True))
        except LocalEntryNotFoundError:
            return None
        return None if missing_files(folder) or self._damaged(folder) else folder

    def plan(self) -> Plan:
        """Ask the hub what is to be downloaded. Raises `HubError`, also if the repository is not a checkpoint and if
        the disk has less room than `missing`."""
        with self._explained():
            files = self._snapshot(dry_run=True, tqdm_class=_bar(_show_nothing, 0))
        names = {file.filename for file in files}
        if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
            lacking = "safetensors file" if "config.json" in names else "config.json"
            raise HubError(
                HubCause.NO_CHECKPOINT,
                f"{self._model} has no {lacking} at its top level, and Baton reads no other format; look for a variant "
                "with config.json and safetensors",
            )
        commit = files[0].commit_hash
        sizes = {file.filename: file.file_size or 0 for file in files}
        damaged = self._damaged(Path(files[0].local_path).parent)
        sizes |= damaged
        missing = sum(sizes[file.filename] for file in files if file.will_download or file.filename in damaged)
        free = shutil.disk_usage(_existing(self._cache)).free
        if missing > free:
            raise disk_full(self._model, str(self._cache), missing, free)
        return Plan(commit, sum(sizes.values()), missing, tuple(damaged))

    def run(self, plan: Plan, report: Report | None = None) -> Path:
        """Download what the plan names, and return the model's folder. By default a terminal shows the progress bars of
        `huggingface_hub`. Raises `HubError`."""
        with self._explained():
            for name in plan.damaged:
                (self._folder(plan.commit) / name).resolve().unlink(missing_ok=True)
            if report is None and sys.stderr.isatty():
                return Path(self._snapshot())
            return Path(self._snapshot(tqdm_class=_bar(report or _show_nothing, plan.missing)))

    def _folder(self, commit: str) -> Path:
        from huggingface_hub.file_download import repo_folder_name

        return self._cache / repo_folder_name(repo_id=self._model.repo, repo_type="model") / "snapshots" / commit

    def _damaged(self, folder: Path) -> dict[str, int]:
        """The files of a snapshot whose size is not the one of the hub, as far as an earlier download has noted it, and
        the right sizes."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            listed = get_cached_repo_tree(self._model.repo, revision=folder.name, cache_dir=self._cache)
        except CachedRepoTreeNotFoundError:
            return {}
        # The hub chooses the paths. What is downloaded has no folder in its path, and cannot be outside of the cache.
        names = {file.path: file.size for file in listed if file.path == Path(file.path).name}
        sizes = {name: size for name, size in names.items() if (folder / name).is_file()}
        return {name: size for name, size in sizes.items() if (folder / name).stat().st_size != size}

    def _snapshot(self, **options: Any) -> Any:
        from huggingface_hub import snapshot_download

        return snapshot_download(
            self._model.repo,
            revision=self._model.revision or None,
            cache_dir=self._cache,
            endpoint=self._endpoint,
            allow_patterns=FILES,
            ignore_patterns=OTHER_FORMATS,
            **options,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the hub client lets its transport's own errors through
            raise explain(error, self._model, self._endpoint, str(self._cache)) from error


def _existing(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _show_nothing(done: int, total: int) -> None: ...


def _bar(report: Report, total: int) -> type:
    """Return a class in place of `tqdm` whose bars for bytes on the disk add up to one report."""
    done = 0

    class Bar:
        """A progress bar that shows nothing itself. `huggingface_hub` counts files, bytes from the network and bytes on
        the disk on one bar each."""

        def __init__(self, *_: object, desc: str = "", unit: str = "", **__: object) -> None:
            self._counts = unit == "B" and not desc.startswith("Downloading")
            self.total: float | None = 0
            self.n: float = 0
            self.format_dict: dict[str, float] = {}

        def update(self, count: float | None = 1) -> None:
            nonlocal done
            if self._counts:
                done += int(count or 0)
                report(min(done, total), total)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def __getattr__(self, name: str) -> Callable[..., None]:
            """Other methods of a bar, such as `refresh` and `set_description`, have nothing to show."""
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *_, **__: None

    return Bar
