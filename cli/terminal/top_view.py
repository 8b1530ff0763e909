"""The picture that `baton top` draws: load, latency, workers with their slots, and failures. Pure."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.client.load_sample import GOOD_ENDS, LoadChange

MAX_SLOT_MARKS = 16
"""Slots that are drawn one by one; the bar of a worker with more has this many marks."""
STATES = {"ready": "green", "loading": "yellow", "starting": "yellow", "backoff": "red", "given_up": "bold red"}
"""Colours of the states of workers."""
MAX_FAILURES = 8
"""Lines of failures."""


def top_view(change: LoadChange, url: str) -> RenderableType:
    """Draw what happened between two samples, and how things are now."""
    parts: list[RenderableType] = [Text(f"Baton at {url}", style="bold"), _load(change), _workers(change)]
    failures = list(_failures(change))[:MAX_FAILURES]
    if failures:
        parts.append(Text("\n".join(failures), style="red"))
    return Group(*parts)


def _load(change: LoadChange) -> RenderableType:
    table = _table(
        "model", "ready", "run", "wait", "tok/s", "prompt/s", "cached", "TTFT p50/p99", "ITL p50/p99", "ends/s"
    )
    for model in dict.fromkeys(worker["model"] for worker in change.now.workers):
        now = change.now
        queued = now.total("baton_queue_depth", model=model)
        computed = change.count("baton_batch_prefill_tokens_total", model=model)
        cached = change.count("baton_prefix_cache_tokens_total", model=model)
        table.add_row(
            escape(model),
            f"{now.total('baton_worker_ready', model=model):.0f}",
            f"{max(0.0, now.total('baton_live_sequences', model=model) - queued):.0f}",
            f"{queued + now.total('baton_waiting_sequences', model=model):.0f}",
            f"{change.rate('baton_batch_decode_tokens_total', model=model):,.0f}",
            f"{change.rate('baton_batch_prefill_tokens_total', model=model):,.0f}",
            f"{cached / (computed + cached):.0%}" if computed + cached else "-",
            _quantiles(change, "baton_time_to_first_token_seconds", model),
            _quantiles(change, "baton_inter_token_latency_seconds", model),
            f"{change.rate('baton_sequences_ended_total', model=model):.1f}",
        )
    return table


def _table(*columns: str) -> Table:
    """A table with names aligned to the left and figures to the right. If it is too wide, names are wrapped."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        if name in ("model", "worker"):
            table.add_column(name, min_width=8, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


def _quantiles(change: LoadChange, name: str, model: str) -> str:
    low, high = (change.quantile(part, name, model=model) for part in (0.5, 0.99))
    if low is None or high is None:
        return "-"
    scale, unit = (1000, "ms") if high < 1 else (1, "s")
    return f"{_rounded(low * scale)}/{_rounded(high * scale)} {unit}"


def _rounded(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _workers(change: LoadChange) -> RenderableType:
    table = _table("worker", "model", "slots", "queue", "KV", "memory", "tok/s", "restarts", "state")
    for worker in change.now.workers:
        name, state = worker["name"], worker["state"]
        role = "" if worker["role"] == "active" else f" {worker['role']}"
        phases = "" if worker.get("phases", "both") == "both" else f" {worker['phases']}"
        circuit = "" if worker["circuit"] == "closed" else f" circuit {worker['circuit']}"
        rows, capacity = (change.now.total(f"baton_kv_{kind}", worker=name) for kind in ("tokens", "capacity_tokens"))
        memory = change.now.total("baton_worker_memory_bytes", worker=name)
        table.add_row(
            escape(name),
            escape(worker["model"]),
            slots(worker["slots_active"], worker["slots_total"]),
            str(worker["queue_depth"]),
            f"{rows / capacity:.0%}" if capacity else "-",
            f"{memory / 1e9:.2f} GB" if memory else "-",
            f"{change.rate('baton_batch_decode_tokens_total', worker=name):,.0f}",
            str(worker["restarts"]),
            Text(state + role + phases + circuit, style=STATES.get(state, "")),
        )
    return table


def slots(active: int, total: int) -> Text:
    """A bar with a mark for each slot, or for each of `MAX_SLOT_MARKS` parts of them, and the numbers."""
    marks = min(total, MAX_SLOT_MARKS)
    filled = -(-active * marks // total) if total else 0
    return Text.assemble(("█" * filled, "cyan"), ("░" * (marks - filled), "dim"), f" {active}/{total}")


def _failures(change: LoadChange) -> Iterator[str]:
    """Failures, the most urgent first: workers that are down, bad ends, replays, and the last losses of workers."""
    for worker in change.now.workers:
        if worker["reason"]:
            yield f"{worker['name']}: {worker['state']}: {worker['reason']}"
    for outcome, count in sorted(change.now.by("baton_sequences_ended_total", "outcome").items()):
        if outcome not in GOOD_ENDS:
            recent = change.count("baton_sequences_ended_total", outcome=outcome)
            yield f"{count:.0f} sequences ended with {outcome}" + (f", {recent:.0f} of them just now" if recent else "")
    for outcome, count in sorted(change.now.by("baton_replays_total", "outcome").items()):
        yield f"{count:.0f} sequences that lost their worker: {outcome}"
    for worker in change.now.workers:
        last: dict[str, Any] | None = worker["last_failure"]
        if last is not None:
            yield f"{worker['name']} was lost {last['ago_s']:.0f} s ago ({last['origin']}): {last['reason']}"
