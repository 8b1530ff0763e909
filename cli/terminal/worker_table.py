"""The table of a server's workers."""

from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 1000
"""Maximum length of a line."""


def show_workers(found: list[dict[str, Any]]) -> None:
    """Print one line for each worker."""
    columns = ("name", "model", "state", "role", "phases", "circuit", "device", "address", "pid", "restarts")
    table = Table(*columns, "slots", "queue", "why", "last failure", box=None)
    for worker in found:
        slots = f"{worker['slots_active']}/{worker['slots_total']}"
        shown = ["-" if worker.get(name) is None else str(worker[name]) for name in columns]
        table.add_row(*shown, slots, str(worker["queue_depth"]), worker["reason"], _last_failure(worker))
    # The table is not fitted to the terminal, which wraps long lines, so that no cell is truncated. All
    # cells are shown as they are: workers of other machines choose names of models.
    Console(highlight=False, markup=False, emoji=False, width=WIDTH).print(table)


def _last_failure(worker: dict[str, Any]) -> str:
    last = worker["last_failure"]
    return "-" if last is None else f"{last['origin']}, {last['ago_s']:.0f} s ago: {last['reason']}"
