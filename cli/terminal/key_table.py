"""The table of a file's API keys."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.worker_table import WIDTH
from gateway.key_weights import Priority
from gateway.keys.key_file import KeyLine
from gateway.keys.record import KeyLimits, KeyRecord


def show_keys(lines: Iterable[KeyLine]) -> None:
    """Print one line for each key."""
    table = Table("name", "for", "created", "limits", box=None)
    for line in lines:
        record = line.record
        if record is None:
            table.add_row(line.name, "clients", "-", "none (a line NAME:KEY)")
        else:
            opens = "administration" if record.admin else "clients"
            table.add_row(record.name, opens, f"{record.created:%Y-%m-%d}", escape(described(record)))
    Console(highlight=False, width=WIDTH).print(table)


def described(record: KeyRecord) -> str:
    """The limits of a key in words."""
    return ", ".join(_words(record.limits)) or "no limits"


def _words(limits: KeyLimits) -> Iterable[str]:
    if limits.requests_per_minute is not None:
        yield f"{limits.requests_per_minute} requests/min"
    if limits.tokens_per_minute is not None:
        yield f"{limits.tokens_per_minute} tokens/min"
    if limits.max_concurrent is not None:
        yield f"{limits.max_concurrent} at once"
    if limits.models:
        yield f"models {' '.join(limits.models)}"
    if limits.priority is not Priority.NORMAL:
        yield f"priority {limits.priority}"
    if limits.expires is not None:
        yield f"expires {limits.expires:%Y-%m-%d %H:%M} UTC"
