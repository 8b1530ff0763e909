"""The table of a server's models."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.worker_table import WIDTH

GB = 1e9


def show_models(found: list[dict[str, Any]]) -> None:
    """Print one line for each model."""
    table = Table("name", "aliases", "state", "GB", "workers", "backend", "context", "last used", "kept", box=None)
    for model in found:
        table.add_row(
            escape(model["id"]),
            escape(", ".join(model["aliases"])) or "-",
            model["state"],
            f"{model['bytes'] / GB:.2f}" if model["bytes"] else "-",
            str(model["workers"]),
            model["backend"] or "-",
            str(model["context"] or "-"),
            "-" if model["last_used_s"] is None else f"{model['last_used_s']:.0f} s ago",
            "always" if model["keep_alive_s"] is None else f"{model['keep_alive_s']:.0f} s",
        )
    Console(highlight=False, width=WIDTH).print(table)
