"""`baton compile`: compiles all graphs of a model ahead of time."""

import json
import time

from rich.console import Console
from rich.table import Table

from cli.client.local import loading_status
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings
from workers.process.backends import compile_ahead
from workers.process.draft_loading import plan_draft


def compile_model(settings: Settings, *, as_json: bool) -> None:
    """Compile the graphs and print their sizes and times. Raises `CommandFailed`."""
    model = ChosenModel.choose(settings)
    spec = worker_spec(settings, model, workers=settings.workers)  # the number of threads is part of what is compiled
    check_model(spec, compile_only=True)
    began = time.perf_counter()
    with loading_status(spec.model_name) as progress:
        try:
            built = list(compile_ahead(spec, progress))
            if (draft := plan_draft(spec, compile_only=True)) is not None:
                built += compile_ahead(draft, progress)
        except Exception as error:
            raise CommandFailed(f"{model.name} could not be compiled: {error or type(error).__name__}") from error
    took = time.perf_counter() - began
    sizes = [module.file.stat().st_size for module in built]
    if as_json:
        modules = [
            {"graphs": module.group, "bytes": size, "seconds": module.seconds}
            for module, size in zip(built, sizes, strict=True)
        ]
        print(json.dumps({"model": model.name, "modules": modules, "seconds": took}))
        return
    table = Table("graphs", "KiB", "seconds", title=model.name, title_justify="left")
    for module, size in zip(built, sizes, strict=True):
        seconds = "in the cache" if module.seconds is None else f"{module.seconds:.1f}"
        table.add_row(" ".join(module.group), f"{size / 1024:,.0f}", seconds)
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{len(built)} modules, {sum(sizes) / 2**20:.1f} MiB, {took:.1f} s")
