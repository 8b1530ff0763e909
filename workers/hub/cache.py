"""The models in the hub's cache on this machine."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.hub_id import HubId
from workers.checkpoints.gguf.find import SUFFIX, choose, first_file, models, quantization_of
from workers.hub.errors import HubCause, HubError

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo

SHORTEST_COMMIT = 7
"""Characters of a commit that stand for it."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One revision of a repository."""

    repo: str
    commit: str
    refs: tuple[str, ...]
    """The branches and tags that are this commit, as far as the cache knows."""
    size: int
    """Bytes on the disk, some of which another revision may share."""
    last_used: float
    """Seconds since the epoch when one of its files was read last, as the file system keeps it."""
    path: Path

    @property
    def id(self) -> HubId:
        """The id under which commands and servers find it."""
        return HubId(self.repo, "" if "main" in self.refs else (*self.refs, self.commit)[0])

    def entries(self) -> list[tuple[HubId, Path, int]]:
        """Return what commands and servers can be given: the folder, or each of its GGUF models, with path and
        bytes."""
        files = [] if any(self.path.glob("*.safetensors*")) else list(self.path.glob(f"*{SUFFIX}"))
        names = [file.name for file in files]
        found = models(names)
        if not found:
            return [(self.id, self.path, self.size)]
        sizes = {name: sum(file.stat().st_size for file in files if first_file(file).name == name) for name in found}
        return [
            (replace(self.id, quantization=quantization_of(names, name)), self.path / name, sizes[name])
            for name in found
        ]

    @property
    def has_others(self) -> bool:
        """There are several models, not a single one in GGUF files alone."""
        several = len(models(file.name for file in self.path.glob(f"*{SUFFIX}"))) > 1
        return several or any(self.path.glob("*.safetensors*"))

    def files_of(self, model: HubId) -> list[Path]:
        """Return the GGUF files of the model of a quantization, all of its shards; empty for none and for several."""
        names = [file.name for file in self.path.glob(f"*{SUFFIX}")]
        chosen = choose(names, model.quantization)
        return sorted(self.path / name for name in names if first_file(Path(name)).name == chosen)

    def named_by(self, model: HubId) -> bool:
        """Return whether `model` is this revision, or all of its repository."""
        wanted = model.revision
        short = len(wanted) >= SHORTEST_COMMIT and self.commit.startswith(wanted)
        return self.repo == model.repo and (not wanted or wanted in self.refs or short)


@dataclass(frozen=True, slots=True)
class CacheContent:
    """The models of a cache, and folders in it that cannot be read, each with the reason."""

    models: tuple[CachedModel, ...]
    unreadable: dict[Path, str]


class HubCache:
    """The cache in one folder, by default that of `huggingface_hub`."""

    def __init__(self, folder: Path | None = None) -> None:
        from huggingface_hub import constants  # slow to import and only needed here

        self.folder = Path(folder or constants.HF_HUB_CACHE).expanduser()

    def read(self) -> CacheContent:
        """Return what the cache has, the models by name."""
        found = self._scan()
        if found is None:
            return CacheContent((), {})
        models = [
            CachedModel(
                repo.repo_id,
                revision.commit_hash,
                tuple(sorted(revision.refs)),
                revision.size_on_disk,
                max((file.blob_last_accessed for file in revision.files), default=revision.last_modified),
                revision.snapshot_path,
            )
            for repo in found.repos
            if repo.repo_type == "model"
            for revision in repo.revisions
        ]
        known = {repo.repo_path for repo in found.repos}
        others = [path for path in self.folder.glob("models--*") if path not in known]
        unreadable = {path: self._reason(path, found.warnings) for path in sorted(others)}
        return CacheContent(tuple(sorted(models, key=lambda model: (model.repo, model.commit))), unreadable)

    def chosen(self, model: HubId) -> list[tuple[CachedModel, list[Path]]]:
        """Return the revisions that an id names, each with the files that are to be removed of it; empty for all. A
        revision without another model than that of the id's quantization is to be removed whole."""
        found = []
        for each in self.read().models:
            files = each.files_of(model) if model.quantization and each.named_by(model) else []
            if files:
                found.append((each, files if each.has_others else []))
            elif each.named_by(model) and not model.quantization:
                found.append((each, []))
        return found

    def remove(self, model: HubId) -> int:
        """Remove a revision, or a whole repository with what interrupted downloads left; with a quantization, the files
        of that model. Returns the bytes that are free now. Raises `HubError` if the cache does not have it or it cannot
        be removed."""
        if model.quantization:
            return self._remove_files(model)
        content, folder = self.read(), self.folder_of(model)
        chosen = [each for each in content.models if each.named_by(model)]
        before = _size(folder)
        if chosen and len(chosen) < sum(each.repo == model.repo for each in content.models):
            found = self._scan()
            assert found is not None, "it has the models that were chosen"
            found.delete_revisions(*(each.commit for each in chosen)).execute()
            left: list[Path] = [each.path for each in chosen if each.path.exists()]
        elif chosen or (folder in content.unreadable and not model.revision):
            shutil.rmtree(folder, ignore_errors=True)
            left = [folder] if folder.exists() else []
        else:
            raise self._not_found(model)
        if left:
            raise _not_writable(left[0])
        return before - _size(folder)

    def _remove_files(self, model: HubId) -> int:
        """Remove the files of a quantization, and their contents unless another revision has them."""
        folder = self.folder_of(model)
        chosen, before = self.chosen(model), _size(folder)
        if not chosen:
            raise self._not_found(model)
        for revision, files in chosen:
            if not files:
                self.remove(HubId(model.repo, revision.commit))
                continue
            stored = [file.resolve() for file in files]
            try:
                for file in files:
                    file.unlink()
                kept = {file.resolve() for file in (folder / "snapshots").rglob("*")}
                for content in stored:
                    if content not in kept and content.is_relative_to(folder.resolve()):  # not of a link elsewhere
                        content.unlink(missing_ok=True)
            except OSError as error:
                raise _not_writable(Path(error.filename)) from error
        return before - _size(folder)

    def _not_found(self, model: HubId) -> HubError:
        problem = f"the cache {self.folder} does not have {model}; `baton list` shows what it has"
        return HubError(HubCause.NOT_FOUND, problem)

    def folder_of(self, model: HubId) -> Path:
        """The folder of a repository, whether it exists or not."""
        from huggingface_hub.file_download import repo_folder_name

        return self.folder / repo_folder_name(repo_id=model.repo, repo_type="model")

    def _scan(self) -> "HFCacheInfo | None":
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound

        try:
            return scan_cache_dir(self.folder)
        except CacheNotFound:
            return None

    @staticmethod
    def _reason(path: Path, warnings: Sequence[Exception]) -> str:
        return next((str(each) for each in warnings if str(path) in str(each)), "is not a repository of the cache")


def _not_writable(path: Path) -> HubError:
    return HubError(HubCause.NOT_WRITABLE, f"{path} cannot be removed; remove it with the rights of its owner")


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir() or file.is_symlink())
