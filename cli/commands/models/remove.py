"""`baton rm`: removes a model from the hub's cache."""

import sys
from collections.abc import Sequence
from pathlib import Path

from cli.commands.models.pull import confirm, hub_model
from cli.config.errors import CommandFailed
from cli.terminal.byte_size import size
from protocol.hub_id import HubId
from workers.errors import LoadRefused
from workers.hub.cache import CachedModel, HubCache
from workers.inspection.running import running_workers


def remove_model(name: str, *, yes: bool) -> None:
    """Remove a model after a confirmation. Raises `CommandFailed`, also if a worker on this machine serves it."""
    model = hub_model(name)
    cache = HubCache()
    chosen = cache.chosen(model)
    _check_unused(model, chosen)
    if not yes and (chosen or (not model.quantization and cache.folder_of(model).exists())):
        _ask(model, sum(sum(map(size_of, files)) if files else each.size for each, files in chosen))
    try:
        freed = cache.remove(model)
    except LoadRefused as error:
        raise CommandFailed(str(error)) from error
    print(f"{model} was removed: {size(freed)} are free")


def size_of(file: Path) -> int:
    """Return the bytes of a file."""
    return file.stat().st_size


def _check_unused(model: HubId, chosen: Sequence[tuple[CachedModel, Sequence[Path]]]) -> None:
    """Raise `CommandFailed` if a worker of this user was started with a checkpoint that is to be removed.

    A worker's command line has the path of its checkpoint. Commands that load a model themselves, such as
    `baton generate`, have read it by then.
    """
    whole = {each.path.resolve() for each, files in chosen if not files}
    parts = {file.resolve() for _, files in chosen for file in files}
    for pid, spec in running_workers().items():
        path = Path(spec.model_path)  # a GGUF file is a link in the folder
        if not whole.isdisjoint({path.resolve(), path.parent.resolve()}) or path.resolve() in parts:
            raise CommandFailed(
                f"the worker {spec.name} (process {pid}) serves {model}; stop its server first, or drain it"
            )


def _ask(model: HubId, held: int) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(f"{model} is removed only with --yes, since nobody can be asked here")
    if not confirm(f"Remove {model} ({size(held)})?"):
        raise CommandFailed("nothing was removed")
