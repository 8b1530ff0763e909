"""`baton inspect`: what a checkpoint is, and what of it is supported, by the headers of its files."""

import json

import msgspec
from rich.console import Console

from actors.process.logs import configure_logging
from cli.commands.models.adapter_inspecting import inspect_adapter
from cli.config.errors import CommandFailed, InvalidOption
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from cli.config.several.hub_model import absent_hub_model
from cli.terminal.inspection_view import show_inspection
from workers.errors import LoadRefused
from workers.inspection.inspection import Inspection
from workers.plugins import registered_backends
from workers.process.backends import PACKAGES


def inspect_model(settings: Settings, console: Console, *, tensors: bool, as_json: bool, base: str = "") -> bool:
    """Print what is known of a checkpoint on this machine, or of a LoRA adapter for the model `base`. Returns whether a
    backend here serves it. Raises `CommandFailed` for what is neither, and for a model of the hub that is not in the
    cache."""
    configure_logging("inspect", "warning")  # to standard error
    if (adapter := inspect_adapter(settings, console, base=base, as_json=as_json)) is not None:
        return adapter
    if base:
        raise InvalidOption(f"--base: {settings.model!r} is not the directory of a LoRA adapter")
    try:
        absent = absent_hub_model(settings)
        if absent is not None:
            raise CommandFailed(f"{absent} is not on this machine: `baton pull {absent}` downloads it")
        every = (*PACKAGES, *registered_backends())
        backends = (settings.backend,) if settings.backend in every else every
        found = Inspection.of(worker_spec(settings, ChosenModel.choose(settings)), backends)
    except (LoadRefused, OSError) as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        print(json.dumps(_object(found, tensors=tensors)))
    else:
        show_inspection(found, console, tensors=tensors)
    return found.served


def _object(found: Inspection, *, tensors: bool) -> dict[str, object]:
    """The fields of the JSON object; each tensor is in it with `tensors` only."""
    made: dict[str, object] = {"served": found.served, **msgspec.to_builtins(found, str_keys=True)}
    made["tasks"] = {**msgspec.to_builtins(found.tasks), "endpoints": found.tasks.endpoints}
    if found.tensors is not None:
        groups = [{"to": to, "dtype": dtype, "count": count} for to, dtype, count in found.tensors.groups()]
        summary: dict[str, object] = {"counts": found.tensors.counts(), "groups": groups}
        made["tensors"] = summary | (msgspec.to_builtins(found.tensors) if tensors else {})
    return made
