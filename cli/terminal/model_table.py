"""The table of a server's models."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.terminal.byte_size import size
from cli.terminal.worker_table import WIDTH

_COLUMNS = ("model", "state", "size", "workers", "backend", "context", "last used", "kept for")


def show_models(models: list[dict[str, Any]]) -> None:
    """Print one line for each model, and below what drafts for it, and why it has failed. Fields may be missing."""
    table, console = Table(*_COLUMNS, box=None), Console(highlight=False, width=WIDTH)
    for model in models:
        table.add_row(
            escape(", ".join([model["id"], *(model.get("aliases") or [])])),
            model["state"],
            _shown(model.get("bytes") or None, lambda count: size(int(count))),
            _shown(model.get("workers"), str),
            _shown(model.get("backend"), str),
            _context(model.get("context"), model.get("model_context")),
            _shown(model.get("last_used_s"), lambda seconds: f"{seconds:.0f} s ago"),
            _shown(model.get("keep_alive_s"), lambda seconds: f"{seconds:.0f} s"),
        )
    console.print(table)
    for model in models:
        if draft := model.get("draft_model"):
            console.print(f"{draft} drafts tokens for {model['id']}", markup=False, soft_wrap=True)
        if adapter := model.get("adapter"):
            console.print(f"the adapter {adapter} is applied to {model['id']}", markup=False, soft_wrap=True)
        if adapters := model.get("adapters"):
            console.print(f"adapters of {model['id']}: {', '.join(adapters)}", markup=False, soft_wrap=True)
        if problem := model.get("problem"):
            console.print(f"{model['id']} could not be loaded: {problem}", markup=False, soft_wrap=True)


def _context(context: int | None, model_context: int | None) -> str:
    less = context is not None and model_context is not None and context < model_context
    return f"{context} of {model_context}" if less else _shown(context, str)


def _shown(value: Any, words: Callable[[Any], str]) -> str:
    return "-" if value is None else escape(words(value))
