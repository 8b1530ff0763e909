"""The gateway with up to 1,000 workers: a simulation that runs its own code, beside real runs of a few workers.

    python bench/scale.py [--workers 1,2,4,8,16,64,256,1000] [--real 1,2,8] [--requests 100]

The router, the fleet, placement, the queue and the supervision of workers are those of the product, on a virtual clock;
links, machines and engines are models (`bench/simulation/`). Each fleet gets `--requests` requests for each worker,
at 70 % of what their slots can compute. Printed are:

- the gateway's CPU time for each request (routing and supervision; HTTP and ZeroMQ are not simulated), which should not
  depend on the number of workers; the growth of memory, with that of the simulated world; the wait for a slot beside
  the ideal one (one queue before all slots); and the standard deviation of the workers' tokens relative to their mean
- real runs, with as many processes of the scripted runner: the whole CPU time of the gateway's process for each
  request. What HTTP and ZeroMQ add is taken from the largest of them; the others are predicted by it and the simulation
- the loss of one machine of eight workers: how long its streams got nothing until the gateway noticed, until another
  worker had them, and until the next token. No stream may be lost or altered.
- independent gateways that share the largest fleet, each with its part of the workers
- every kind of fault at once, with a rolling upgrade, over several seeds
- the number of workers at which one core of the gateway is full

Exit status 1 if anything was lost, doubled or altered, or if a real request failed. Needs Linux for the real runs.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, levels, parsed
from bench.harness.options import add_out
from bench.measurement.machine import cpu_model
from bench.measurement.markdown import markdown
from bench.measurement.plots import add_curve, can_plot, figure, label_log_axes
from bench.simulation.engine import EngineModel
from bench.simulation.outcome import Cost, FleetOutcome, quantile
from bench.simulation.real_run import RealPoint, run_really
from bench.simulation.scenario import Scenario
from bench.simulation.scenarios import node_loss, steady, troubled
from bench.simulation.simulation import simulate
from gateway.garbage_collection import collect_rarely

ENGINE = EngineModel(step_s=0.05, row_s=0.0, prefill_s=0.0)
"""The pace of the scripted runner of the real runs."""
MIN_REQUESTS = 1000
"""Requests of the smallest fleets."""
LOSS_FROM = 16
"""Workers from which the loss of a machine is simulated: with fewer, too little is left."""
SHORTER = 5
"""Runs with lost machines, and with several gateways, have so many times fewer requests."""
TROUBLED = (48, 2000)
"""Workers and requests of the runs with every kind of fault."""


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """One simulation."""

    scenario: Scenario
    outcome: FleetOutcome
    cost: Cost


def run(scenario: Scenario) -> SimulatedPoint:
    """Simulate a scenario at the pace of the real runs."""
    scenario = replace(scenario, engine=ENGINE)
    point = SimulatedPoint(scenario, *simulate(scenario))
    print(f"simulated {scenario.workers} workers, {scenario.requests} requests", file=sys.stderr, flush=True)
    return point


def real_run(workers: int, seconds: float) -> RealPoint:
    """Run the same load for so many seconds really."""
    scenario = replace(steady(workers, 1), engine=ENGINE)
    requests = max(1, round(seconds * scenario.requests_per_s))
    print(f"runs {workers} workers really, {requests} requests", file=sys.stderr, flush=True)
    return run_really(replace(scenario, requests=requests))


def steady_table(points: Sequence[SimulatedPoint]) -> str:
    """The curves of an undisturbed fleet."""
    least = min(point.cost.gateway_us for point in points)
    rows = []
    for point in points:
        scenario, outcome, cost = point.scenario, point.outcome, point.cost
        waits = [1000 * wait for wait in (outcome.wait_s, quantile(outcome.waits_s, 0.99), outcome.ideal_wait_s)]
        rows.append(
            [
                f"{scenario.workers:,}",
                f"{scenario.requests:,}",
                f"{cost.gateway_us:,.0f}",
                f"{cost.gateway_us / least:.2f}",
                f"{cost.memory_bytes / 1e6:,.0f}",
                *(f"{wait:,.1f}" for wait in waits),
                f"{100 * outcome.imbalance:.1f} %",
            ]
        )
    heads = ("requests", "CPU us/request", "of the least", "MB", "wait ms", "p99", "ideal", "imbalance")
    return markdown(("workers", *heads), rows)


def real_table(points: Sequence[RealPoint], simulated: dict[int, SimulatedPoint]) -> str:
    """The real runs, beside what the simulation predicts."""
    added = added_us(points, simulated)
    rows = []
    for point in points:
        twin = simulated[point.workers]
        predicted = twin.cost.gateway_us + added + point.idle_us
        rows.append(
            [
                str(point.workers),
                f"{point.cpu_us:,.0f}",
                f"{predicted:,.0f}",
                f"{point.cpu_us / predicted:.2f}",
                f"{1000 * point.first_token_s:.0f}",
                f"{1000 * twin.outcome.first_token_s:.0f}",
                f"{100 * point.idle:.1f} %",
            ]
        )
    heads = ("real CPU us/request", "predicted", "ratio", "first token ms", "simulated", "idle")
    return markdown(("workers", *heads), rows)


def added_us(points: Sequence[RealPoint], simulated: dict[int, SimulatedPoint]) -> float:
    """CPU microseconds of a request that are not simulated: those of HTTP and ZeroMQ, by the real run with the most
    workers, as a process that does little at a time takes longer for it. 0 without real runs."""
    if not points:
        return 0.0
    most = max(points, key=lambda point: point.workers)
    return max(0.0, most.cpu_us - most.idle_us - simulated[most.workers].cost.gateway_us)


def loss_table(points: Sequence[SimulatedPoint]) -> str:
    """The loss of a machine."""
    rows = []
    for point in points:
        moved = point.outcome.moved
        silent, queued, gaps = ([getattr(each, name) for each in moved] for name in ("silent_s", "queued_s", "gap_s"))
        rows.append(
            [
                f"{point.scenario.workers:,}",
                str(len(moved)),
                f"{quantile(silent, 0.5):.2f}",
                f"{1000 * quantile(queued, 0.5):.1f}",
                f"{1000 * quantile(queued, 1.0):.1f}",
                f"{quantile(gaps, 0.5):.2f}",
                f"{quantile(gaps, 1.0):.2f}",
                str(point.outcome.lost + point.outcome.doubled),
                str(point.outcome.altered),
            ]
        )
    heads = ("streams moved", "noticed s", "placed ms", "at most", "gap s", "at most", "lost or doubled", "altered")
    return markdown(("workers", *heads), rows)


def gateways_table(points: Sequence[SimulatedPoint]) -> str:
    """Gateways that share nothing."""
    rows = [
        [
            str(point.scenario.gateways),
            f"{point.scenario.workers / point.scenario.gateways:,.0f}",
            f"{point.cost.gateway_us:,.0f}",
            f"{100 * point.cost.core / point.scenario.gateways:.0f} %",
            f"{1000 * point.outcome.wait_s:.1f}",
        ]
        for point in points
    ]
    return markdown(("gateways", "workers each", "CPU us/request", "of a core each", "wait ms"), rows)


def full_at(point: SimulatedPoint, added: float) -> float:
    """The number of workers with this load at which one core is full."""
    scenario = point.scenario
    return 1e6 / ((point.cost.gateway_us + added) * scenario.requests_per_s / scenario.workers)


def plot(
    steady_points: Sequence[SimulatedPoint], losses: Sequence[SimulatedPoint], real: Sequence[RealPoint], file: Path
) -> None:
    """Write the curves, with the real points."""
    if not can_plot(file):
        return
    added = added_us(real, {point.scenario.workers: point for point in steady_points})
    whole, ((cpu, waits, gaps),) = figure(1, 3)
    sizes = [point.scenario.workers for point in steady_points]
    costs = [point.cost.gateway_us for point in steady_points]
    add_curve(cpu, list(zip(sizes, costs, strict=True)), "o-", 0, "simulated: routing and supervision")
    if real:
        add_curve(cpu, [(size, cost + added) for size, cost in zip(sizes, costs, strict=True)], "--", 1, "predicted")
        add_curve(cpu, [(point.workers, point.cpu_us) for point in real], "s", 3, "real: with HTTP and ZeroMQ")
    label_log_axes(cpu, "The gateway's CPU time for a request", "workers", "us")
    cpu.set_ylim(bottom=100)
    outcomes = [point.outcome for point in steady_points]
    curves = {
        "p99": [quantile(each.waits_s, 0.99) for each in outcomes],
        "mean": [each.wait_s for each in outcomes],
        "ideal mean": [each.ideal_wait_s for each in outcomes],
    }
    for colour, (name, values) in enumerate(curves.items()):
        milliseconds = [(size, 1000 * value or None) for size, value in zip(sizes, values, strict=True)]
        add_curve(waits, milliseconds, "o-", colour, name)
    label_log_axes(waits, "Wait for a slot at 70 % load", "workers", "ms")
    for colour, (name, part) in enumerate({"longest": 1.0, "median": 0.5}.items()):
        found = [(each.scenario.workers, quantile([m.gap_s for m in each.outcome.moved], part)) for each in losses]
        add_curve(gaps, found, "o-", colour, f"{name} gap of a stream")
    placed = [(each.scenario.workers, quantile([m.queued_s for m in each.outcome.moved], 1.0)) for each in losses]
    add_curve(gaps, [(size, max(value, 1e-4)) for size, value in placed], "o-", 2, "noticed until placed, at most")
    label_log_axes(gaps, "A machine of 8 workers disappears", "workers", "s")
    whole.savefig(file)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--workers", type=levels, default="1,2,4,8,16,64,256,1000", help="simulated, separated by commas"
    )
    parser.add_argument("--requests", type=at_least(1), default=100, help="for each simulated worker")
    parser.add_argument("--real", type=levels, default="1,2,8", help="workers of real runs, separated by commas")
    parser.add_argument("--real-s", type=above_zero, default=15.0, help="seconds of each of them")
    parser.add_argument("--no-real", action="store_true", help="leave the real runs out")
    parser.add_argument("--gateways", type=levels, default="1,4,16", help="that share the largest fleet")
    parser.add_argument("--seeds", type=at_least(0), default=4, help="runs with every kind of fault")
    parser.add_argument("--seed", type=int, default=0, help="of the load")
    out = add_out(parser, "scale")
    smoke = {"workers": "1,16", "requests": 4, "real": "1", "real_s": 1.0, "gateways": "2", "seeds": 1}
    return parsed(parser, words, smoke=smoke | out)


def main() -> None:
    args = arguments()
    configure_logging("gateway", "error")
    collect_rarely()
    began = time.monotonic()
    least = 16 if args.smoke else MIN_REQUESTS
    real = [] if args.no_real else [real_run(size, args.real_s) for size in args.real]
    sizes = sorted({*args.workers, *(point.workers for point in real)})
    points = [run(steady(size, max(least, args.requests * size), args.seed)) for size in sizes]
    fewer = max(4, args.requests // SHORTER)
    losses = [run(node_loss(size, fewer * size, args.seed)) for size in sizes if size >= LOSS_FROM]
    largest = points[-1].scenario
    few = replace(largest, requests=fewer * largest.workers)
    shared = [run(replace(few, gateways=count)) for count in args.gateways]
    workers, requests = (12, 100) if args.smoke else TROUBLED
    trouble = [run(troubled(workers, requests, seed)) for seed in range(args.seeds)]
    simulated = {point.scenario.workers: point for point in points}
    added = added_us(real, simulated)
    lines = [steady_table(points)]
    lines += [real_table(real, simulated)] if real else []
    lines += [loss_table(losses)] if losses else []
    lines += [gateways_table(shared)]
    for point in trouble:
        codes = ", ".join(f"{count:,} {code}" for code, count in point.outcome.codes.items())
        moved, state = len(point.outcome.moved), "intact" if point.outcome.intact else "BROKEN"
        lines.append(f"every fault and an upgrade, seed {point.scenario.seed}: {codes}; {moved} streams moved; {state}")
    rate = largest.requests_per_s / largest.workers
    tokens = rate * statistics.fmean(largest.output_tokens)
    full, routing = full_at(points[-1], added), full_at(points[-1], 0.0)
    load = f"with {rate:.1f} requests and {tokens:.0f} tokens a second each"
    lines.append(
        f"one core is full at {routing:,.0f} workers {load} by routing alone, at {full:,.0f} with all the rest"
    )
    report = "\n\n".join(lines)
    print(report)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.md").write_text(f"{cpu_model()}\n\n{report}\n")
    figures = [
        {"workers": point.scenario.workers, "requests": point.scenario.requests, **asdict(point.cost)}
        for point in points
    ]
    (args.out / "figures.json").write_text(json.dumps({"simulated": figures, "real": [asdict(each) for each in real]}))
    plot(points, losses, real, args.out / "plot.svg")
    print(f"written to {args.out} after {time.monotonic() - began:.0f} s")
    every = [*points, *losses, *shared, *trouble]
    sys.exit(0 if all(point.outcome.intact for point in every) and not any(point.errors for point in real) else 1)


if __name__ == "__main__":
    main()
