"""`baton list`: the models on this machine."""

import json
import textwrap
import time
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from actors.process.logs import configure_logging
from cli.commands.models.pull import report, servable_with
from cli.config.model import BUILTIN_NAME
from cli.config.settings import Settings
from cli.terminal.byte_size import size
from cli.terminal.worker_table import WIDTH
from models import builtin_path
from workers.hub.cache import HubCache

LONGEST_PROBLEM = 200
"""Characters of a problem in the table, which `--json` has whole."""
_SECOND_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def list_models(settings: Settings, *, as_json: bool) -> None:
    """Print the built-in model and those of the hub's cache."""
    configure_logging("list", "warning")  # to standard error
    cache = HubCache()
    content = cache.read()
    builtin = builtin_path()
    entries: list[dict[str, Any]] = [
        {
            "model": BUILTIN_NAME,
            "revision": None,
            "bytes": sum(file.stat().st_size for file in builtin.iterdir()),
            "last_used": None,
            **report(servable_with(settings, builtin)),
        }
    ]
    used_at: list[float | None] = [None]
    for model in content.models:
        when = datetime.fromtimestamp(model.last_used, UTC).isoformat(timespec="seconds")
        for name, path, held in model.entries():
            checked = report(servable_with(settings, path))
            shown = {"model": str(name), "revision": model.commit, "bytes": held, "last_used": when}
            entries.append(shown | checked)
            used_at.append(model.last_used)
    if as_json:
        unreadable = {str(path): reason for path, reason in content.unreadable.items()}
        print(json.dumps({"cache": str(cache.folder), "models": entries, "unreadable": unreadable}))
        return
    now = time.time()
    table = Table("model", "revision", "size", "last used", "serves", box=None)
    for entry, used in zip(entries, used_at, strict=True):
        problem = textwrap.shorten(entry["problem"] or "", LONGEST_PROBLEM, placeholder=" ...")
        serves = f"yes, on {entry['backend']}" if entry["servable"] else f"no: {problem}"
        revision = (entry["revision"] or "-")[:12]
        table.add_row(entry["model"], revision, size(entry["bytes"]), _ago(used, now), escape(serves))
    Console(highlight=False, width=WIDTH).print(table)
    warnings = Console(stderr=True, highlight=False, soft_wrap=True)
    for path, reason in content.unreadable.items():
        repository = path.name.removeprefix("models--").replace("--", "/")
        warnings.print(
            f"{repository} is not complete: `baton pull {repository}` repeats its download, and "
            f"`baton rm {repository}` removes it ({reason})",
            markup=False,
        )


def _ago(at: float | None, now: float) -> str:
    """Format a time in the past: 3 days ago."""
    if at is None:
        return "-"
    passed = max(0.0, now - at)
    for seconds, unit in _SECOND_UNITS:
        if passed >= seconds:
            count = int(passed // seconds)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
