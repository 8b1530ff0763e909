"""The report of a soak: a table, the samples as JSON, and a plot over time."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.plots import can_plot, figure
from bench.harness.rounds import markdown
from bench.soaking.fault_plan import Plan, kinds
from bench.soaking.leaks import Sample
from bench.soaking.server_log import reasons

if TYPE_CHECKING:
    from bench.soak import Result

NEVER = ("altered", "duplicated", "lost", "hung")
"""Ends of a visit that are shown though there was none."""


def write_report(plan: Plan, result: "Result", out: Path) -> str:
    """The report as text, which is also written to `out`, as the samples are."""
    parts = (_outcomes(result), _gaps(result), _faults(plan, result, out / "server.log"), _problems(result))
    text = "\n\n".join(filter(None, parts))
    kind = "scripted" if plan.scripted else f"the built-in model on {plan.backend}"
    head = (
        f"seed {plan.seed}, {plan.seconds:g} s, {plan.clients} clients, {plan.workers}+{plan.standby} workers, {kind}"
    )
    (out / "table.md").write_text(f"{head}\n\n{text}\n")
    (out / "samples.json").write_text(json.dumps([asdict(each) for each in result.samples]))
    return text


def _outcomes(result: "Result") -> str:
    """How visits ended, what must be nought always, and what was not given back."""
    tally = result.tally
    total = tally.outcomes.total()
    others = [(name, count) for name, count in tally.outcomes.most_common() if count and name not in NEVER]
    rows = [*others, *((name, tally.outcomes[name]) for name in NEVER), ("**in all**", total)]
    rows += [("violated", tally.violations), ("problems of the server", len(result.problems))]
    return markdown(
        ("visits ended", "", "share"),
        [
            [name, str(count), f"{count / total:.2%}" if total and name != "problems of the server" else ""]
            for name, count in rows
        ],
    )


def _gaps(result: "Result") -> str:
    """What clients saw between two chunks of a stream."""
    heads = ("answered streams that", "", "gap p50 ms", "p99 ms", "longest ms")
    calm = ["undisturbed, one at a time", "", "", "", f"{1e3 * result.calm_s:.0f}"]
    return markdown(heads, [*result.tally.gap_figures(result.failures), calm])


def _faults(plan: Plan, result: "Result", log: Path) -> str:
    planned = kinds([plan.faults(name, life) for name, lives in result.lives.items() for life in range(1, lives + 1)])
    outside = Counter(kind for _, kind in result.struck)
    names = sorted(planned.keys() | outside.keys())
    rows = [[name, str(outside.get(name, 0)), str(planned.get(name, 0))] for name in names]
    with log.open() as lines:
        seen = [[reason, str(count)] for reason, count in reasons(lines).most_common()]
    table = markdown(("fault", "from outside", "in the plans of lives"), rows)
    return f"{table}\n\n{markdown(('workers were started again because', ''), seen)}"


def _problems(result: "Result") -> str:
    return "\n".join(f"- {problem}" for problem in [*result.problems, *result.tally.told])


def plot(samples: Sequence[Sample], struck: Sequence[tuple[float, str]], file: Path) -> None:
    """Memory, descriptors, live streams and faults over time."""
    if not can_plot(file):
        return
    drawn, axes = figure(2, 2)
    times = [each.at_s for each in samples]
    panels = (
        ("resident memory, MB", {"gateway_bytes": 1e-6, "worker_bytes": 1e-6}),
        ("descriptors, threads, processes", dict.fromkeys(COUNTED, 1.0)),
        ("sequences in slots and queues", {"streams": 1.0}),
        ("faults so far", {"restarts": 1.0}),
    )
    for panel, (title, quantities) in zip(axes.flat, panels, strict=True):
        for name, scale in quantities.items():
            panel.plot(times, [scale * getattr(each, name) for each in samples], label=name.replace("_", " "))
        panel.set_title(title)
        panel.set_xlabel("seconds")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for kind in sorted({kind for _, kind in struck}):
        at = [when for when, other in struck if other == kind]
        axes.flat[-1].step(at, range(1, len(at) + 1), where="post", label=f"{kind} from outside")
    for panel in axes.flat:
        panel.legend(fontsize="x-small")
    drawn.savefig(file)


COUNTED = ("gateway_descriptors", "gateway_threads", "worker_descriptors", "processes")
