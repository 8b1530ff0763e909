"""The report of a soak: a table, the samples as JSON, and a plot over time."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.leaks import Sample
from bench.plan import Plan, kinds
from bench.plots import figure
from bench.rounds import markdown

if TYPE_CHECKING:
    from bench.soak import Result


def write_report(plan: Plan, result: "Result", out: Path) -> str:
    """The report as text, which is also written to `out`, as the samples are."""
    text = "\n\n".join(filter(None, (_outcomes(result), _faults(plan, result, out / "server.log"), _problems(result))))
    (out / "table.md").write_text(f"seed {plan.seed}, {plan.seconds:g} s, {plan.clients} clients\n\n{text}\n")
    (out / "samples.json").write_text(json.dumps([asdict(each) for each in result.samples]))
    return text


def _outcomes(result: "Result") -> str:
    rows = [[name, str(count)] for name, count in result.tally.outcomes.most_common()]
    total = result.tally.outcomes.total()
    return markdown(
        ("visits ended", ""), [*rows, ["**in all**", str(total)], ["violated", str(result.tally.violations)]]
    )


def _faults(plan: Plan, result: "Result", log: Path) -> str:
    planned = kinds([plan.faults(name, life) for name, lives in result.lives.items() for life in range(1, lives + 1)])
    outside = Counter(kind for _, kind in result.struck)
    names = sorted(planned.keys() | outside.keys())
    rows = [[name, str(outside.get(name, 0)), str(planned.get(name, 0))] for name in names]
    seen = [[reason, str(count)] for reason, count in reasons(log.read_text().splitlines()).most_common()]
    table = markdown(("fault", "from outside", "in the plans of lives"), rows)
    return f"{table}\n\n{markdown(('restarts', ''), seen)}"


def reasons(lines: Sequence[str]) -> Counter[str]:
    """Why workers were started again, by the server's log: each reason without its numbers."""
    found: Counter[str] = Counter()
    for line in lines:
        if '"worker_restarts"' in line:
            found[re.sub(r"\d+(\.\d+)?", "N", str(json.loads(line)["reason"]))] += 1
    return found


def _problems(result: "Result") -> str:
    return "\n".join(f"- {problem}" for problem in [*result.problems, *result.tally.told])


def plot(samples: Sequence[Sample], struck: Sequence[tuple[float, str]], file: Path) -> None:
    """Memory, descriptors, live streams and faults over time."""
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
