"""The download of a LoRA adapter from the hub into its cache."""

import shutil
from pathlib import Path

from protocol.adapter_files import ADAPTER_FILES
from protocol.bounds import MAX_ADAPTER_BYTES
from protocol.hub_id import HubId
from workers.hub.download import Download, Plan, Report, existing
from workers.hub.errors import HubCause, HubError, disk_full

CONFIG, *WEIGHTS = ADAPTER_FILES


class AdapterDownload(Download):
    """Downloads one adapter: of its repository only the files that an adapter is read from, at the top level."""

    def cached(self) -> Path | None:
        """Return the adapter's folder in the cache if all its files are there and whole. Does not use the network."""
        folder = self._local(ADAPTER_FILES)
        if folder is None or not _is_adapter({name for name in ADAPTER_FILES if (folder / name).is_file()}):
            return None
        missing = set(ADAPTER_FILES) & set(self._listed(folder)) - {each.name for each in folder.iterdir()}
        return None if missing or self._damaged(folder) else folder

    def plan(self) -> Plan:
        """Ask the hub what is to be downloaded. Raises `HubError`, also for a repository without an adapter, for one of
        more than `MAX_ADAPTER_BYTES` and if the disk has less room than `missing`."""
        files = self._listing(ADAPTER_FILES)
        names = tuple(name for name in ADAPTER_FILES if any(file.filename == name for file in files))
        if not _is_adapter(set(names)):
            problem = f"{self._model} has no {CONFIG} with {' or '.join(WEIGHTS)} at its top level"
            raise HubError(HubCause.NO_CHECKPOINT, f"{problem}: it is no LoRA adapter in PEFT's or mlx-lm's layout")
        damaged = self._damaged(Path(files[0].local_path).parent)
        sizes = {file.filename: file.file_size or 0 for file in files} | damaged
        if (size := sum(sizes.values())) > MAX_ADAPTER_BYTES:
            problem = f"the files of the adapter {self._model} have {size} bytes, more than {MAX_ADAPTER_BYTES}"
            raise HubError(HubCause.NO_CHECKPOINT, problem)
        missing = sum(sizes[file.filename] for file in files if file.will_download or file.filename in damaged)
        free = shutil.disk_usage(existing(self._cache)).free
        if missing > free:
            raise disk_full(self._model, str(self._cache), missing, free)
        return Plan(files[0].commit_hash, size, missing, tuple(damaged), names)

    def run(self, plan: Plan, report: Report | None = None) -> Path:
        """Download what the plan names, and return the adapter's folder. Raises `HubError`."""
        return super().run(plan, report).parent


def resolve_adapter(path_or_hub_id: str) -> Path:
    """Return the folder in the cache of an adapter of the hub, after a download if it is not there, and any other text
    as the path that it is. As for models (`workers.hub.resolve`), an adapter that is complete in the cache is used
    without the network, and a directory of this name comes first. Raises `HubError`."""
    local = Path(path_or_hub_id).expanduser()
    adapter = None if local.exists() else HubId.parse(path_or_hub_id)
    if adapter is None or adapter.quantization:
        return local.absolute()
    download = AdapterDownload(adapter)
    return download.cached() or download.run(download.plan())


def _is_adapter(names: set[str]) -> bool:
    return CONFIG in names and not names.isdisjoint(WEIGHTS)
