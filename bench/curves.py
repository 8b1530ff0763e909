"""Time of a decode step against context and against rows, beside the limits of memory and arithmetic.

    python bench/curves.py [--quick] [--models 110m 0.5b] [--quantize int8] [--rows 1 4] [--contexts 256 512 ... 8192]

Two series: each of --rows at every context, and every number of rows up to 32 at the first context, both in --rounds
whose medians are shown; each round has the numbers of rows in another order. Beside each figure is the time that memory
alone takes, (weights + KV) / bandwidth, and that arithmetic alone takes, multiply-adds / peak, both measured between
the points; multiply-adds of integers are not counted. A step takes longer than the larger of the two because of
dispatches, and of reads and sums that do not overlap. Marked are points at which the cost is not smooth: "cliff" where
the time grows by more than the size, "dip" where a larger step takes less.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.options import SMOKE_SLOTS, add_cache_dir, add_out, add_quantize
from bench.harness.shapes import SHAPES, make_model
from bench.measurement.limits import BLOCK, SMOKE_BLOCK, MemoryReader, multiply_adds, step_bytes
from bench.measurement.markdown import markdown
from bench.measurement.peak import Peak
from bench.measurement.rounds import RefusedError
from bench.measurement.step_curve import HEADER, Point, cells, flaws, kv_slope, medians, plot_curves, steepest
from workers.checkpoints.checkpoint import ModelConfig
from workers.host.topology import usable_cores

ROWS = tuple(range(1, 33))
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
MARGIN = 16
"""Rows of a slot beyond the longest context and the steps that are timed."""
CAPACITY = 1024
"""Rows of a slot are a multiple of this, so that graphs are compiled for few numbers of them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The measurements of the limits."""

    memory: MemoryReader
    peak: Peak


class Curves:
    """Measures the points of one model."""

    def __init__(self, engine: Engine, config: ModelConfig, steps: int, machine: Machine) -> None:
        self._engine, self._config, self._steps = engine, config, steps
        self._machine = machine
        self._bytes = step_bytes(config, engine.runner)
        # Prefixes and copies of one prompt: the engine reuses them, so that filling the cache costs little.
        self._text = engine.prompt(engine.runner.capabilities.context)

    def point(self, series: str, rows: int, context: int) -> Point:
        bandwidth, peak = self._machine.memory.best(3), self._machine.peak.measure()
        start = context - self._steps // 2
        seconds = statistics.median(self._engine.steps([self._text[:start]] * rows, self._steps))
        weights, kv = self._bytes.matrices(rows), self._bytes.cache(rows, context)
        counted = not self._engine.runner.capabilities.quantization  # integer multiply-adds are of another kind
        sums = multiply_adds(self._config, rows, context, rows) if counted else 0.0
        return Point(series, rows, context, seconds, weights, kv, bandwidth, sums, peak)


def turns(count: int, rounds: int, *, shuffled: bool) -> Iterator[list[int]]:
    """Yield the order of the points of each round. Shuffled, a machine that slows down for a time, or more and more,
    makes no step in the curve."""
    for number in range(rounds):
        yield random.Random(number).sample(range(count), count) if shuffled else list(range(count))


def measure(args: argparse.Namespace, model: str, machine: Machine) -> Iterator[Point]:
    """Every point of a model. Raises `RefusedError`."""
    path = make_model(args.cache_dir, model)
    graphs = args.cache_dir / "graphs"
    config = ModelConfig.from_dir(path)
    first = args.contexts[0]
    sizes = {
        "context": [(rows, context) for rows in args.rows for context in args.contexts],
        "rows": [(rows, first) for rows in args.all_rows],
    }
    for series, points in sizes.items():
        if not points:
            continue
        slots, longest = max(rows for rows, _ in points), max(context for _, context in points)
        capacity = -(-(longest + args.steps + MARGIN) // CAPACITY) * CAPACITY
        setup = Setup(path, graphs, slots, capacity, quantize=args.quantize, device=args.device)
        engine = Engine.load(setup)
        curves = Curves(engine, config, args.steps, machine)
        kind = f"{model} {args.quantize or 'bf16'}"
        of = {at: f"{kind}, {at[0]} at once" if series == "context" else f"{kind}, context {at[1]}" for at in points}
        rounds = []
        # A longer context continues a shorter one, so that those stay in order.
        for turn in turns(len(points), args.rounds, shuffled=series == "rows"):
            found = {index: curves.point(of[points[index]], *points[index]) for index in turn}
            rounds.append([found[index] for index in range(len(points))])
        yield from medians(rounds)
        engine.close()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=list(SHAPES), default=["110m", "0.5b"], help="the shapes, of random weights"
    )
    add_quantize(parser)
    parser.add_argument(
        "--rows",
        nargs="*",
        type=at_least(1),
        default=[1, 4],
        help="of the curves against context; none leaves them out",
    )
    parser.add_argument(
        "--contexts", nargs="+", type=at_least(1), default=list(CONTEXTS), help="tokens that a row has behind it"
    )
    parser.add_argument(
        "--all-rows",
        nargs="*",
        type=at_least(1),
        default=list(ROWS),
        help="of the curve against rows; none leaves it out",
    )
    parser.add_argument(
        "--steps", type=at_least(1), default=7, help="steps of each point in a round; medians are printed"
    )
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="times that a series is measured, of which medians are taken"
    )
    parser.add_argument("--device", default="", help="of the IREE backend; empty is its default")
    parser.add_argument("--quick", action="store_true", help="unless given: 110m, one row to context 2048, rows 1 to 8")
    add_cache_dir(parser)
    out = add_out(parser, "curves")
    quick = {"models": ["110m"], "rows": [1], "contexts": [256, 1024, 2048], "all_rows": [1, 2, 4, 8]}
    smoke = {"models": ["tiny"], "rows": [SMOKE_SLOTS], "contexts": [64, 256], "all_rows": [1, SMOKE_SLOTS]}
    args = parsed(parser, words, smoke=smoke | out | {"steps": 3, "rounds": 1}, quick=quick)
    if not args.rows and not args.all_rows:
        parser.error("argument --all-rows: without --rows as well there is no curve to measure")
    if min(args.contexts) <= args.steps // 2:
        parser.error(f"argument --contexts: {min(args.contexts)} tokens are not more than half of --steps {args.steps}")
    return args


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    points: list[Point] = []
    threads = usable_cores()
    try:
        block = SMOKE_BLOCK if args.smoke else BLOCK
        with closing(MemoryReader(threads, block)) as memory, closing(Peak(threads, args.cache_dir / "graphs")) as peak:
            for model in args.models:
                for point in measure(args, model, Machine(memory, peak)):
                    points.append(point)
                    print(" | ".join(cells(point, "")), flush=True)
    except RefusedError as error:
        sys.exit(f"refused: {error}")
    series = {name: [p for p in points if p.series == name] for name in dict.fromkeys(p.series for p in points)}
    lines = [cells(p, flaw) for of in series.values() for p, flaw in zip(of, flaws(of), strict=True)]
    table = markdown(HEADER, lines)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.md").write_text(table + "\n")
    (args.out / "figures.json").write_text(json.dumps([asdict(point) for point in points]))
    plot_curves(series, args.out / "plot.svg")
    print(f"\n{table}\n")
    for name, of in series.items():
        if len({point.context for point in of}) > 1:
            print(f"{name}: more KV is read at {kv_slope(of) / 1e9:.1f} GB/s, memory gives {of[0].bandwidth / 1e9:.1f}")
        elif len(of) > 1:
            factor, rows = steepest(of)
            print(f"{name}: from one number of rows to the next the time grows most by {factor:.2f}, to {rows}")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
