"""Several kernels as one persistent kernel: its threads go from stage to stage by themselves, without a dispatch each.

The partitions of a stage are taken by counting, by whichever thread is free. The next stage begins when all of them are
done. A thread only ever waits for a partition that another thread works on: a single thread does everything, and any
number of threads may come late, or not at all. A thread that has waited for long leaves the rest to the others, for the
core of the one that it waits for has other work. The last thread never waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value

COUNTS = 2
"""Counters of a stage: partitions that are taken, and those that are done."""
APART = LANES
"""int32 from one counter to the next: each has a cache line of its own."""
PATIENCE = 1 << 12
"""Looks at a counter before a thread leaves: some tenths of a millisecond, more than threads wait for each other
at the end of a stage, and less than a core is away that the system has given to something else."""


def counters(chains: int, phases: int) -> int:
    """Return how many int32 counters the fused kernels of one graph share; they begin as zeros."""
    return chains * phases * COUNTS * APART


@dataclass(slots=True)
class Chain:
    """The stages of one kernel, each to be added after those before it."""

    kernel: Kernel
    phases: int
    """The most stages there can be."""
    counts: Memory
    """int32 [`counters`], updated in place."""
    number: Value
    """An index: which of the fused kernels that share the counters this is."""
    pause: str
    """The intrinsic by which a core tells that it only waits; empty where there is none."""
    _added: int = 0
    _of_last: int = 0
    """Shares of the stage that was added last."""

    @property
    def code(self) -> Code:
        return self.kernel.code

    def phase(self, partitions: int, work: Callable[[Partition], None]) -> None:
        """Have `work` done for each of so many partitions, after the stage before and before the next one.

        Raises `ValueError` for more stages than there are counters for: it would count in those of the next kernel.
        """
        if self._added == self.phases:
            raise ValueError(f"a chain of {self.phases} phases has no room for another one")
        if self._added:
            self._wait()
        at = self._added
        self._added += 1
        self._of_last = partitions
        taken, done = (self._counter(at, which) for which in range(COUNTS))

        def is_left(values: list[Value]) -> tuple[Value, Sequence[Value]]:
            return values[0] < partitions, values

        def do(values: list[Value]) -> Sequence[Value]:
            work(Partition(values[0], partitions))
            self.counts.fetch_add(1, [done])
            return [self.counts.fetch_add(1, [taken])]

        self.code.loop_while([self.counts.fetch_add(1, [taken])], is_left, do)

    def end(self) -> str:
        """Return the kernel's text."""
        for _ in range(self._added - 1):
            self.code.end_when()
        return self.kernel.function()

    def _counter(self, phase: int, which: int) -> Value:
        return self.number * (self.phases * COUNTS * APART) + (phase * COUNTS + which) * APART

    def _wait(self) -> None:
        """Wait until the last stage's partitions are done; what comes after is done only by threads that have seen
        it."""
        code, partitions = self.code, self._of_last
        done = self._counter(self._added - 1, 1)

        def is_early(values: list[Value]) -> tuple[Value, Sequence[Value]]:
            (looks,) = values
            count = self.counts.fetch_add(0, [done])
            return (count < partitions) & (looks < PATIENCE), [looks, count]

        def look_again(values: list[Value]) -> Sequence[Value]:
            if self.pause:
                code.intrinsic_statement(self.pause)
            return [values[0] + 1]

        _, count = code.loop_while([code.index(0)], is_early, look_again)
        code.begin_when(count >= partitions)
