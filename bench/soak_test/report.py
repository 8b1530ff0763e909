"""The report of a soak: a table, the samples as JSON, and a plot over time."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.measurement.markdown import markdown
from bench.measurement.plots import can_plot, figure, plot_against
from bench.soak_test.fault_plan import SoakPlan, kinds
from bench.soak_test.leaks import ServerSample
from bench.soak_test.result import SoakResult
from bench.soak_test.server_log import reasons

COUNTED = ("gateway_descriptors", "gateway_threads", "worker_descriptors", "processes")

ENDS = ("answered", "closed", "held")
"""The ends of attacks: see `bench.soak_test.attackers`."""
NEVER = ("altered", "duplicated", "lost", "hung")
"""Outcomes that are shown also if there were none."""


def write_report(plan: SoakPlan, result: SoakResult, out: Path) -> str:
    """The report as text. Writes it and the samples into `out`."""
    faults = _faults(plan, result, out / "server.log")
    parts = (_outcomes(result), _gaps(result), faults, _attacks(plan, result), _problems(result))
    text = "\n\n".join(filter(None, parts))
    kind = "scripted" if plan.scripted else f"the built-in model on {plan.backend}"
    head = (
        f"seed {plan.seed}, {plan.seconds:g} s, {plan.clients} clients, {plan.workers}+{plan.standby} workers, {kind}"
    )
    (out / "table.md").write_text(f"{head}\n\n{text}\n")
    (out / "samples.json").write_text(json.dumps([asdict(each) for each in result.samples]))
    return text


def _outcomes(result: SoakResult) -> str:
    """The outcomes of visits, those that must be 0 included, and the number of the server's problems."""
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


def _gaps(result: SoakResult) -> str:
    """Times between two chunks of a stream."""
    heads = ("answered streams that", "", "gap p50 ms", "p99 ms", "longest ms")
    calm = ["undisturbed, one at a time", "", "", "", f"{1e3 * result.calm_s:.0f}"]
    return markdown(heads, [*result.tally.gap_figures(result.failures), calm])


def _faults(plan: SoakPlan, result: SoakResult, log: Path) -> str:
    planned = kinds([plan.faults(name, life) for name, lives in result.lives.items() for life in range(1, lives + 1)])
    outside = Counter(kind for _, kind in result.signals)
    names = sorted(planned.keys() | outside.keys())
    rows = [[name, str(outside.get(name, 0)), str(planned.get(name, 0))] for name in names]
    with log.open() as lines:
        seen = [[reason, str(count)] for reason, count in reasons(lines).most_common()]
    table = markdown(("fault", "from outside", "in the plans of lives"), rows)
    return f"{table}\n\n{markdown(('workers were started again because', ''), seen)}"


def _attacks(plan: SoakPlan, result: SoakResult) -> str:
    """The attacks and how they ended, and what honest clients could notice of them."""
    if not plan.attackers:
        return ""
    attacks, turn = result.attacks, result.turn
    names = sorted({name for name, _ in attacks.ended})
    rows = [[name.replace("_", " "), *(str(attacks.ended[name, end]) for end in ENDS)] for name in names]
    noticed = [
        ["slowest answer to a probe", f"{1e3 * attacks.slowest_probe_s:.0f}", ""],
        ["longest turn of the event loop, CPU time", f"{turn.cpu_ms:.1f}", turn.ran],
        ["of which garbage collection", f"{turn.gc_ms:.1f}", ""],
    ]
    return f"{markdown(('attack', *ENDS), rows)}\n\n{markdown(('meanwhile', 'ms', ''), noticed)}"


def _problems(result: SoakResult) -> str:
    return "\n".join(f"- {problem}" for problem in [*result.problems, *result.tally.shown])


def plot(samples: Sequence[ServerSample], signals: Sequence[tuple[float, str]], file: Path) -> None:
    """Plot memory, descriptors, live streams and faults over time."""
    if not can_plot(file):
        return
    whole, axes = figure(2, 2)
    times = [each.at_s for each in samples]
    panels = (
        ("resident memory, MB", {"gateway_bytes": 1e-6, "worker_bytes": 1e-6}),
        ("descriptors, threads, processes", dict.fromkeys(COUNTED, 1.0)),
        ("sequences in slots and queues", {"streams": 1.0}),
        ("faults so far", {"restarts": 1.0}),
    )
    for kind in sorted({kind for _, kind in signals}):
        at = [when for when, other in signals if other == kind]
        axes.flat[-1].step(at, range(1, len(at) + 1), where="post", label=f"{kind} from outside")
    for panel, (title, quantities) in zip(axes.flat, panels, strict=True):
        curves = {
            name.replace("_", " "): [by * getattr(each, name) for each in samples] for name, by in quantities.items()
        }
        plot_against(panel, title, ("seconds", times), curves)
    whole.savefig(file)
