"""SIMULATED decode steps on machines with more cores than this one: how the division of the work scales with threads.

    python bench/kernels/scaling.py [--threads 1 2 4 8 16 32 64] [--cache-cores 8] [--node-gbs 200]

Nothing is measured here: a discrete-event model runs the stages of the fused layer (their partitions are those of the
kernels) for one row, with the costs that the options name. A thread takes a partition by an atomic addition to a
counter, reads its weights at its share of the memory bandwidth, and reports it by another addition; then it waits for
the stage. Additions to one counter happen one after the other. The threads that wait add zero to it, of which LLVM
makes a fence and a load on x86. With --additions they add, as on AArch64, in one queue with those that report.

  step ms      one step, and in brackets the time that its bytes take if all threads read all the time
  waiting      the share of the threads' time in which they have nothing to do
  counters     the share in which they take and report partitions
  two nodes    the same threads on two NUMA nodes, with weights interleaved: half of the bytes cross the link
  a worker each  two workers, each on one node with its own copy of the weights: tokens a second of both
"""

import argparse
import heapq
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.harness.command_line import at_least, command_line, parsed
from workers.checkpoints.quantized_matrix import GroupFormat
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import partition_count, tapered_starts
from workers.iree.kernels.matmul.packing import Packing

PACKINGS = {
    "int8": Packing(GroupFormat(8, 64, "middle", "float16")),
    "int4": Packing(GroupFormat(4, 64, "bias", "float16")),
}
GROUP = 64
"""Activations that share a scale."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The sizes of a model that decide a step of one row."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int


SHAPES = (
    StepShape("0.5b", 24, 896, 14, 2, 64, 4864, 151936),
    StepShape("7b", 28, 3584, 28, 4, 128, 18944, 152064),
)


@dataclass(frozen=True, slots=True)
class Costs:
    """The machine, in nanoseconds and bytes a nanosecond (GB/s)."""

    core: float
    """Bytes that one thread reads and multiplies."""
    node: float
    """Bytes that the memory of one node gives to its threads together."""
    link: float
    """Bytes that cross between two nodes, in one direction."""
    near: float
    """An atomic addition to a line that a core with the same cache has."""
    far: float
    """The same of any other core."""
    cache_cores: int
    """Cores that share a last-level cache."""
    wake: float
    """From one thread's start in a step to the next one's: each wakes the one after it."""
    dispatch: float
    """From one dispatch to the next."""
    additions: bool = False
    """Threads that wait add zero to the counter, of which LLVM makes a load on x86 and not on AArch64."""
    remote: bool = False
    """Threads are on two nodes, and weights interleaved between them."""

    def rate(self, threads: int) -> float:
        """Bytes a nanosecond that one of so many threads gets."""
        if not self.remote:
            return min(self.core, self.node / threads)
        # A thread reads half from each node: a link has half the bytes of the threads on one side.
        return min(self.core, 2 * self.node / threads, 2 * self.link / (threads / 2))

    def addition(self, threads: int) -> float:
        """An atomic addition, if any of the threads may have the line."""
        return self.near if threads <= self.cache_cores else self.far


@dataclass(frozen=True, slots=True)
class FusedStage:
    """A stage of a fused kernel."""

    work: tuple[float, ...]
    """Bytes of each partition; a step of few values counts as the bytes that take as long."""


@dataclass
class Simulation:
    """Threads that go from stage to stage. Times are in nanoseconds."""

    threads: int
    costs: Costs
    ready: list[float] = field(default_factory=list)
    """The time at which each thread is free."""
    waited: float = 0.0
    counted: float = 0.0
    bytes: float = 0.0

    def __post_init__(self) -> None:
        self.ready = [number * self.costs.wake for number in range(self.threads)]

    def run(self, stage: FusedStage) -> None:
        """Run a stage: each free thread takes the next partition, until none is left and all are done."""
        cost, rate = self.costs.addition(self.threads), self.costs.rate(self.threads)
        work, waiting = iter(stage.work), list[float]()
        taken = done = 0.0  # when each counter is free again
        # A thread that wants a partition, or has done one.
        events = [(time, number, False) for number, time in enumerate(self.ready)]
        heapq.heapify(events)
        while events:
            time, number, reports = heapq.heappop(events)
            if reports:  # after a load, the line is with all that wait; additions are in one queue with this one
                done = max(time, done) + cost * (1 + (len(waiting) if self.costs.additions else min(1, len(waiting))))
                self.counted += done - time
                heapq.heappush(events, (done, number, False))
                continue
            taken = max(time, taken) + cost
            self.counted += taken - time
            size = next(work, None)
            if size is None:
                waiting.append(taken)
            else:
                self.bytes += size
                heapq.heappush(events, (taken + size / rate, number, True))
        end = max(waiting) + cost
        self.waited += sum(end - each for each in waiting)
        self.ready = [end] * self.threads

    def dispatch(self) -> None:
        """End one dispatch and begin another."""
        self.ready = [max(self.ready) + self.costs.dispatch] * self.threads

    @property
    def end(self) -> float:
        return max(self.ready)


def matmul(outputs: int, inputs: int, packing: Packing, threads: int) -> FusedStage:
    """The stage of a product with quantized weights."""
    tiles = outputs // LANES
    starts = tapered_starts(tiles, partition_count(tiles, threads))
    size = packing.tile_bytes(inputs)
    return FusedStage(tuple(size * (end - start) for start, end in pairwise(starts)))


def small(items: int, most: int, each: float) -> FusedStage:
    """A stage of few values, divided equally among at most `most` partitions; an item counts as `each` bytes."""
    count = min(items, most)
    return FusedStage(tuple(each * ((part + 1) * items // count - part * items // count) for part in range(count)))


def layer(shape: StepShape, packing: Packing, threads: int, positions: int) -> Iterator[FusedStage]:
    """The stages of `baton_layer` for one row, as `workers.iree.kernels.fused_layer` adds them."""
    mixed, kv_blocks = shape.heads * shape.head_dim, -(-positions // 128)
    kv_bytes = 2 * 2 * shape.head_dim * positions / kv_blocks  # of a KV head and a block, in bfloat16
    value = 16.0  # bytes that take as long as one value of a norm or a quantization
    yield small(shape.hidden // GROUP, 2 * threads, GROUP * value)
    yield matmul(mixed + 2 * shape.kv_heads * shape.head_dim, shape.hidden, packing, threads)
    yield small(shape.kv_heads, 2 * threads, 3 * shape.head_dim * value)
    yield small(shape.kv_heads * kv_blocks, 7 * threads, kv_bytes)
    yield small(shape.heads, 7 * threads, shape.head_dim * value)
    yield small(mixed // GROUP, 2 * threads, GROUP * value)
    yield matmul(shape.hidden, mixed, packing, threads)
    yield small(1, threads, 2 * shape.hidden * value)
    yield matmul(2 * shape.ffn, shape.hidden, packing, threads)
    yield small(shape.ffn // GROUP, 2 * threads, GROUP * value)
    yield matmul(shape.hidden, shape.ffn, packing, threads)
    yield small(1, threads, shape.hidden * value)


def step(shape: StepShape, packing: Packing, threads: int, costs: Costs, positions: int) -> Simulation:
    """A decode step of one row: all layers, then the head."""
    run = Simulation(threads, costs)
    stages = list(layer(shape, packing, threads, positions))
    for _ in range(shape.layers):
        for stage in stages:
            run.run(stage)
        run.dispatch()
    run.run(matmul(shape.vocab, shape.hidden, packing, threads))
    run.dispatch()
    return run


def line(shape: StepShape, kind: str, threads: int, costs: Costs, positions: int) -> str:
    """One line of the table."""
    run = step(shape, PACKINGS[kind], threads, costs, positions)
    busy = threads * run.end
    least = run.bytes / (costs.rate(threads) * threads)
    text = f"{shape.name:>5} {kind:>5} {threads:8} {run.end / 1e6:9.2f} ({least / 1e6:.2f})"
    text += f" {100 * run.waited / busy:8.0f}% {100 * run.counted / busy:8.0f}%"
    if threads < 2:
        return text
    both = step(shape, PACKINGS[kind], threads, replace(costs, remote=True), positions)
    own = step(shape, PACKINGS[kind], threads // 2, costs, positions)
    return f"{text} {both.end / 1e6:11.2f} {1e9 / both.end:9.0f} {2e9 / own.end:16.0f}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--threads", type=at_least(1), nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="to simulate")
    parser.add_argument("--positions", type=at_least(1), default=256, help="tokens that the row has behind it")
    parser.add_argument("--core-gbs", type=at_least(1), default=17, help="GB/s that one thread's kernels read")
    parser.add_argument("--node-gbs", type=at_least(1), default=200, help="GB/s of the memory of one NUMA node")
    parser.add_argument("--link-gbs", type=at_least(1), default=60, help="GB/s between two nodes, in one direction")
    parser.add_argument("--near-ns", type=at_least(1), default=25, help="of an atomic addition within a cache")
    parser.add_argument("--far-ns", type=at_least(1), default=100, help="of one between caches")
    parser.add_argument("--cache-cores", type=at_least(1), default=8, help="cores that share a last-level cache")
    parser.add_argument("--wake-us", type=at_least(0), default=5, help="from the wake of a thread to that of the next")
    parser.add_argument("--dispatch-us", type=at_least(0), default=4, help="between two dispatches")
    parser.add_argument("--additions", action="store_true", help="threads wait by additions of zero instead of loads")
    return parsed(parser, words, smoke={"threads": [1, 4]})


def main() -> None:
    args = arguments()
    costs = Costs(
        args.core_gbs, args.node_gbs, args.link_gbs, args.near_ns, args.far_ns, args.cache_cores,
        1000.0 * args.wake_us, 1000.0 * args.dispatch_us, args.additions,
    )  # fmt: skip
    print("SIMULATED, one row")
    print(f"{'model':>5} {'':>5} {'threads':>8} {'step ms':>16} {'waiting':>9} {'counters':>9}", end="")
    print(f" {'two nodes':>11} {'tok/s':>9} {'a worker each':>16}")
    for shape in SHAPES:
        for kind in PACKINGS:
            for threads in args.threads:
                print(line(shape, kind, threads, costs, args.positions), flush=True)


if __name__ == "__main__":
    main()
