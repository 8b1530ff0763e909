"""`baton rm`: removes a model from the hub's cache."""

import sys
from pathlib import Path

from cli.commands.models.pull import confirm, hub_model
from cli.config.errors import CommandFailed
from cli.terminal.byte_size import size
from workers.errors import LoadRefused
from workers.hub.cache import HubCache
from workers.hub.hub_id import HubId
from workers.inspection.running import running_workers


def remove_model(name: str, *, yes: bool) -> None:
    """Remove a model after a confirmation. Raises `CommandFailed`, also if a worker on this machine serves it."""
    model = hub_model(name)
    if model.quantization:
        raise CommandFailed(f"all GGUF files of {model.repo} are removed together: leave :{model.quantization} out")
    cache = HubCache()
    chosen = [each for each in cache.read().models if each.named_by(model)]
    _check_unused(cache, model)
    if not yes and (chosen or cache.folder_of(model).exists()):
        _ask(model, sum(each.size for each in chosen))
    try:
        freed = cache.remove(model)
    except LoadRefused as error:
        raise CommandFailed(str(error)) from error
    print(f"{model} was removed: {size(freed)} are free")


def _check_unused(cache: HubCache, model: HubId) -> None:
    """Raise `CommandFailed` if a worker of this user was started with a checkpoint that is to be removed.

    A worker's command line has the path of its checkpoint. Commands that load a model themselves, such as
    `baton generate`, have read it by then.
    """
    folders = {each.path.resolve() for each in cache.read().models if each.named_by(model)}
    for pid, spec in running_workers().items():
        path = Path(spec.model_path)  # a GGUF file is a link in the folder
        if not folders.isdisjoint({path.resolve(), path.parent.resolve()}):
            raise CommandFailed(
                f"the worker {spec.name} (process {pid}) serves {model}; stop its server first, or drain it"
            )


def _ask(model: HubId, held: int) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed(f"{model} is removed only with --yes, since nobody can be asked here")
    if not confirm(f"Remove {model} ({size(held)})?"):
        raise CommandFailed("nothing was removed")
