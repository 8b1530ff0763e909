"""The download of a model from the hub into its cache."""

import glob
import logging
import shutil
import sys
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from protocol.hub_id import HubId
from workers.checkpoints.gguf.find import DEFAULT, SUFFIX, choose, choose_projector, models, projectors
from workers.checkpoints.gguf.gguf_file import shard_files
from workers.checkpoints.weight_files import missing_files
from workers.hub.errors import HubCause, HubError, disk_full, explain

FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""Patterns of the files that a worker reads."""
OTHER_FORMATS = ["consolidated*", "*/*"]
"""Patterns of files with the same weights for other programs."""

WithProjector = Literal["with", "without", "alone"]
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
    files: tuple[str, ...] = FILES
    """Patterns of the files; the names of the shards of a GGUF file."""


class Download:
    """Downloads one model. Files that are complete in the cache are not downloaded again.

    Two downloads of one model at once are safe: `huggingface_hub` locks each file, and renames it when it is complete.
    """

    def __init__(
        self,
        model: HubId,
        endpoint: str | None = None,
        cache: Path | None = None,
        *,
        projector: WithProjector = "with",
    ) -> None:
        """`endpoint` and `cache` are by default those of `huggingface_hub`. `projector` says whether the projector of
        images in a repository with GGUF files is a part of the model, or all that is wanted of it."""
        from huggingface_hub import constants  # slow to import and only needed here

        own = logging.getLogger("huggingface_hub")
        for handler in own.handlers[:]:  # it prints text, beside the lines of our handler
            own.removeHandler(handler)
        self._model = model
        self._projector = projector
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._cache = Path(cache or constants.HF_HUB_CACHE).expanduser()

    def cached(self) -> Path | None:
        """Return the model's folder or GGUF file in the cache if all its files are there and whole. Does not use the
        network. Raises `CheckpointError` for an index of weights that cannot be read."""
        folder = self._local(FILES) if self._may_be_folder else None
        if folder is not None and (folder / "config.json").exists():
            return None if missing_files(folder) or self._damaged(folder) else folder
        folder = self._local(())  # a config.json beside GGUF files need not be there
        if folder is None:
            return None
        listed = self._listed(folder)
        if self._may_be_folder and _in_hugging_face_layout(listed):
            return None
        files = [folder / name for name in self._chosen(listed)]
        whole = all(file.is_file() and file.stat().st_size == listed.get(file.name) for file in files)
        return files[0] if files and whole else None

    def plan(self) -> Plan:
        """Ask the hub what is to be downloaded. Raises `HubError`, also if the repository is not a checkpoint and if
        the disk has less room than `missing`."""
        wanted: tuple[str, ...] = FILES
        files = self._listing(wanted) if self._may_be_folder else []
        names = {file.filename for file in files}
        if not _in_hugging_face_layout(names):
            wanted = self._gguf_files(names)
            files = self._listing(_patterns(wanted))
        commit = files[0].commit_hash
        sizes = {file.filename: file.file_size or 0 for file in files}
        damaged = self._damaged(Path(files[0].local_path).parent)
        sizes |= damaged
        missing = sum(sizes[file.filename] for file in files if file.will_download or file.filename in damaged)
        free = shutil.disk_usage(existing(self._cache)).free
        if missing > free:
            raise disk_full(self._model, str(self._cache), missing, free)
        return Plan(commit, sum(sizes.values()), missing, tuple(damaged), wanted)

    def run(self, plan: Plan, report: Report | None = None) -> Path:
        """Download what the plan names, and return the model's folder or GGUF file. By default a terminal shows the
        progress bars of `huggingface_hub`. Raises `HubError`."""
        with self._explained():
            for name in plan.damaged:
                (self._folder(plan.commit) / name).resolve().unlink(missing_ok=True)
            shown = {} if report is None and sys.stderr.isatty() else _bar_option(report or _show_nothing, plan.missing)
            folder = Path(self._snapshot(_patterns(plan.files), **shown))
        return folder if plan.files == FILES else folder / plan.files[0]

    @property
    def _may_be_folder(self) -> bool:
        """The model may be a folder in Hugging Face layout."""
        return not self._model.quantization and self._projector != "alone"

    def _chosen(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the GGUF files that are wanted of a repository with these: the shards of a model, then its projector.
        None if it is not clear which."""
        wanted = self._model.quantization
        if self._projector == "alone":
            own = choose_projector(names, "", wanted)
            return () if own is None else (own,)
        first = choose(names, wanted)
        if first is None:
            return ()
        own = choose_projector(names, first) if self._projector == "with" else None
        return (*(file.name for file in shard_files(Path(first))), *([] if own is None else [own]))

    def _local(self, patterns: Sequence[str]) -> Path | None:
        """Return the model's folder in the cache if it has all files of these names."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return Path(self._snapshot(patterns, local_files_only=True))
        except LocalEntryNotFoundError:
            return None

    def _listing(self, patterns: Sequence[str]) -> list[Any]:
        """Ask the hub for the files of these names."""
        with self._explained():
            return list(self._snapshot(patterns, dry_run=True, **_bar_option(_show_nothing, 0)))

    def _gguf_files(self, others: Container[str]) -> tuple[str, ...]:
        """Return the files of the GGUF model that is wanted. Raises `HubError` if there is none, or which one is not
        clear; `others` are files of another format."""
        model = self._model
        names = {file.filename for file in self._listing([f"*{SUFFIX}"])}
        found = models(names)
        chosen = self._chosen(names)
        if chosen:
            if (missing := next((name for name in chosen if name not in names), None)) is not None:
                raise HubError(
                    HubCause.NO_CHECKPOINT, f"{model.repo} has not all shards of a model: {missing} is missing"
                )
            return chosen
        if self._projector == "alone":
            known = ", ".join(projectors(names)[:12]) or "none"
            problem = (
                f"{model} is no projector of images; name the precision of one of its mmproj files, as F16: {known}"
            )
            raise HubError(HubCause.NO_CHECKPOINT, problem)
        if found:
            fitting = f"none of {model.quantization}" if model.quantization else f"several, and not one {DEFAULT}"
            raise HubError(
                HubCause.NO_CHECKPOINT,
                f"{model.repo} has {fitting} among its GGUF files; name one like {model.repo}:QUANTIZATION: "
                f"{', '.join(found[:12])}",
            )
        lacking = "safetensors file" if "config.json" in others else "config.json"
        lacking = f"{model.quantization} GGUF file" if model.quantization else f"{lacking} and no GGUF file"
        raise HubError(
            HubCause.NO_CHECKPOINT,
            f"{model} has no {lacking} at its top level, and Baton reads no other format; look for a variant with "
            "config.json and safetensors, or a GGUF file",
        )

    def _folder(self, commit: str) -> Path:
        from huggingface_hub.file_download import repo_folder_name

        return self._cache / repo_folder_name(repo_id=self._model.repo, repo_type="model") / "snapshots" / commit

    def _damaged(self, folder: Path) -> dict[str, int]:
        """The files of a snapshot whose size is not the one of the hub, as far as an earlier download has noted it, and
        the right sizes."""
        sizes = {name: size for name, size in self._listed(folder).items() if (folder / name).is_file()}
        return {name: size for name, size in sizes.items() if (folder / name).stat().st_size != size}

    def _listed(self, folder: Path) -> dict[str, int]:
        """The files of a snapshot at the top level of the repository and their sizes, as an earlier download has noted
        them."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            listed = get_cached_repo_tree(self._model.repo, revision=folder.name, cache_dir=self._cache)
        except CachedRepoTreeNotFoundError:
            return {}
        # The hub chooses the paths. What is downloaded has no folder in its path, and cannot be outside of the cache.
        return {file.path: file.size for file in listed if file.path == Path(file.path).name}

    def _snapshot(self, patterns: Sequence[str] = FILES, **options: Any) -> Any:
        from huggingface_hub import snapshot_download

        return snapshot_download(
            self._model.repo,
            revision=self._model.revision or None,
            cache_dir=self._cache,
            endpoint=self._endpoint,
            allow_patterns=list(patterns),
            ignore_patterns=OTHER_FORMATS,
            **options,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the hub client lets its transport's own errors through
            raise explain(error, self._model, self._endpoint, str(self._cache)) from error


def _in_hugging_face_layout(names: Collection[str]) -> bool:
    """Return whether a repository with these files is a checkpoint that is downloaded as a folder."""
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


def _patterns(files: Sequence[str]) -> Sequence[str]:
    """Return the patterns of a plan's files, of which names may have characters that patterns give a meaning."""
    return files if files == FILES else [glob.escape(name) for name in files]


def existing(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _show_nothing(done: int, total: int) -> None: ...


def _bar_option(report: Report, total: int) -> dict[str, Any]:
    """Return the option that reports progress in place of the bars of `huggingface_hub`."""
    return {"tqdm_class": _bar(report, total)}


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
