"""`baton inspect` of a LoRA adapter: what it is, and whether it fits a model."""

import json
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from cli.config.several.hub_model import absent_hub_model
from cli.terminal.byte_size import size
from workers.errors import LoadRefused
from workers.inspection.adapter_inspection import AdapterInspection, base_model, is_adapter
from workers.process.spec import WorkerSpec


def inspect_adapter(settings: Settings, console: Console, *, base: str, as_json: bool) -> bool | None:
    """Print what is known of the adapter in the directory that the settings name as their model, and compare it with
    the model `base`, by default the one that its description names, if that is on this machine. Returns whether it can
    be loaded with it; None for what is no adapter. Raises `CommandFailed` for a `base` that is not on this machine."""
    path = Path(settings.model).expanduser()
    if not settings.model or not is_adapter(path):
        return None
    found = AdapterInspection.of(path, _spec(settings, base or base_model(path), given=base), settings.max_lora_rank)
    if as_json:
        print(json.dumps({"served": found.served, **msgspec.to_builtins(found)}))
    else:
        _show(found, console)
    return found.served


def _spec(settings: Settings, model: str, *, given: str) -> WorkerSpec | None:
    """Return the spec of a worker with a model; None for one that is not on this machine, unless it was given."""
    if not model:
        return None
    wanted = settings.model_copy(update={"model": model, "name": "model"})
    try:
        if (absent := absent_hub_model(wanted)) is not None:
            if given:
                raise CommandFailed(f"{absent} is not on this machine: `baton pull {absent}` downloads it")
            return None
        return worker_spec(wanted, ChosenModel.choose(wanted))
    except (LoadRefused, OSError) as error:
        if given:
            raise CommandFailed(str(error)) from error
        return None


def _show(found: AdapterInspection, console: Console) -> None:
    table = Table(title="Adapter", title_justify="left", show_header=False)
    rows = (
        ("path", found.path),
        ("layout", {"peft": "PEFT", "mlx": "mlx-lm"}.get(found.layout, "")),
        ("model", found.base_model),
        ("rank", ", ".join(map(str, found.ranks))),
        ("scale", ", ".join(f"{each:g}" for each in found.scales)),
        ("modules", ", ".join(f"{count} {name}" for name, count in (found.modules or {}).items())),
        ("parameters", f"{found.parameters:,}" if found.parameters else ""),
        ("size", size(found.file_bytes) if found.file_bytes else ""),
        ("compared with", found.model or "nothing: name a model on this machine with --base"),
    )
    for name, text in rows:
        if text:
            table.add_row(name, escape(text))
    console.print(table)
    if found.problem:
        console.print(f"  refused: {found.problem}", markup=False, soft_wrap=True)
    elif found.model:
        console.print("  It fits: `--lora-modules NAME=DIR` serves it.", markup=False)
