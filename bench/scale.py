"""The gateway with up to 1,000 workers: a simulation that runs its own code, beside real runs of a few workers.

    python bench/scale.py [--workers 1,2,4,8,16,32,64,256,1000] [--real 1,2,8,32] [--requests 50]

The router, the fleet, placement, the queue, the supervision of workers and, with several gateways, what shares a worker
out among them are those of the product, on a virtual clock; links, machines and engines are models
(`bench/simulation/`). Each fleet gets `--requests` requests for each worker, at 70 % of what their slots can compute.
Printed are:

- the gateway's CPU time for each request while they come steadily: of routing and supervision, which are simulated,
  and with what HTTP and ZeroMQ add in the real runs; it should not depend on the number of workers; the same with one
  worker, when other memory is read before each of its messages, which empties the caches; the CPU time for each idle
  worker and second; the objects of each request that only the garbage collector frees; the wait for a slot beside the
  ideal one (one queue before all slots); and the standard deviation of the workers' tokens relative to their mean
- the gateway's memory for each worker and for each live stream, by Python's own count
- real runs, with as many processes of the scripted runner: the whole CPU time of the gateway's process for each
  request. What HTTP and ZeroMQ add is taken from the largest of them; the others are predicted by it and the simulation
- the loss of one machine of eight workers: how long its streams got nothing until the gateway noticed, until another
  worker had them, and until the next token. No stream may be lost or altered.
- independent gateways, each with its part of one fleet; gateways that share all workers of a smaller one; and
  the loss of one of those, whose clients send their requests again to another one
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
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, levels, parsed
from bench.harness.options import add_out
from bench.measurement.machine import cpu_model
from bench.measurement.plots import add_curve, can_plot, figure, label_log_axes
from bench.simulation.engine import EngineModel
from bench.simulation.memory import gateway_memory
from bench.simulation.outcome import quantile
from bench.simulation.real_run import RealPoint, run_really
from bench.simulation.scenario import Scenario
from bench.simulation.scenarios import gateway_loss, node_loss, steady, troubled
from bench.simulation.simulation import simulate
from bench.simulation.tables import (
    SimulatedPoint,
    added_us,
    gateways_table,
    loss_table,
    lost_gateways_table,
    memory_line,
    real_table,
    steady_table,
)
from gateway.garbage_collection import collect_rarely

ENGINE = EngineModel(step_s=0.05, row_s=0.0, prefill_s=0.0)
"""The pace of the scripted runner of the real runs."""
MIN_REQUESTS = 1000
"""Requests of the smallest fleets."""
LOSS_FROM = 16
"""Workers from which the loss of a machine is simulated: with fewer, too little is left."""
SHORTER = 5
"""Runs with lost machines, and with several gateways, have so many times fewer requests."""
CACHE_BYTES = (8 << 20, 64 << 20)
"""More than the caches of one core have, and more than the last one has."""
COLD_REQUESTS = 400
TRACED = (64, 8)
"""Workers of the run in which memory is measured, and requests for each."""
INDEPENDENT_WORKERS = 256
"""Workers that several gateways divide, at most."""
SHARED_WORKERS = 64
"""Workers that several gateways share, at most."""
TROUBLED = (48, 2000)
"""Workers and requests of the runs with every kind of fault."""


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
        "--workers", type=levels, default="1,2,4,8,16,32,64,256,1000", help="simulated, separated by commas"
    )
    parser.add_argument("--requests", type=at_least(1), default=50, help="for each simulated worker")
    parser.add_argument("--real", type=levels, default="1,2,8,32", help="workers of real runs, separated by commas")
    parser.add_argument("--real-s", type=above_zero, default=15.0, help="seconds of each of them")
    parser.add_argument("--no-real", action="store_true", help="leave the real runs out")
    parser.add_argument("--gateways", type=levels, default="1,4,16", help="of the runs with several")
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
    several = []
    for most, shared in ((INDEPENDENT_WORKERS, False), (SHARED_WORKERS, True)):
        size = min(most, largest.workers)
        common = replace(steady(size, args.requests * size, args.seed), shared=shared)
        several += [run(replace(common, gateways=count)) for count in args.gateways]
    gone = gateway_loss(size, fewer * size, args.seed)
    lost_gateways = [run(replace(gone, gateways=count)) for count in args.gateways if count > 1]
    one = steady(1, least if args.smoke else COLD_REQUESTS, args.seed)
    cold = [run(replace(one, cache_bytes=size)) for size in CACHE_BYTES]
    traced, per_worker = (size, 4) if args.smoke else TRACED
    memory = gateway_memory(replace(steady(traced, per_worker * traced, args.seed), engine=ENGINE))
    workers, requests = (12, 100) if args.smoke else TROUBLED
    trouble = [run(troubled(workers, requests, seed)) for seed in range(args.seeds)]
    simulated = {point.scenario.workers: point for point in points}
    added = added_us(real, simulated)
    lines = [steady_table(points, cold, added), memory_line(memory, points[-1])]
    lines += [real_table(real, simulated)] if real else []
    lines += [loss_table(losses)] if losses else []
    lines += [gateways_table(several)]
    lines += [lost_gateways_table(lost_gateways)] if lost_gateways else []
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
    every = [*points, *losses, *several, *lost_gateways, *trouble]
    sys.exit(0 if all(point.outcome.intact for point in every) and not any(point.errors for point in real) else 1)


if __name__ == "__main__":
    main()
