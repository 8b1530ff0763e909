"""Fused kernels: several kernels as the stages of one persistent kernel.

Its threads go from stage to stage by themselves, without a dispatch each. The partitions of a stage are taken by
counting, by whichever thread is free. The next stage begins when all of them are done. A thread only ever waits for a
partition that another thread works on: a single thread does everything, and any number of threads may come late, or not
at all. A thread that spins too long exits: the thread it waits for may have been descheduled. The last thread never
waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value

COUNTERS_PER_STAGE = 2
"""Partitions that are taken, and those that are done."""
COUNTER_STRIDE = LANES
"""int32 from one counter to the next: each has a cache line of its own."""
PAUSE_OPERANDS = {"llvm.aarch64.isb": (15,)}
"""Operands of the intrinsics by which a core waits: the barrier's domain, the whole system."""
MAX_SPINS = 1 << 12
"""Spins before a thread exits: longer than a normal barrier wait, shorter than a scheduler time slice."""


def barrier_counters(kernels: int, stages: int) -> int:
    """Return how many int32 counters the fused kernels of one graph share; they begin as zeros."""
    return kernels * stages * COUNTERS_PER_STAGE * COUNTER_STRIDE


@dataclass(slots=True)
class FusedKernel:
    """The stages of one kernel, each to be added after those before it."""

    kernel: Kernel
    max_stages: int
    counters: Memory
    """int32 [`barrier_counters`], updated in place."""
    number: Value
    """An index: which of the fused kernels that share the counters this is."""
    pause: str
    """The intrinsic by which a core tells that it only waits; empty where there is none."""
    _added: int = 0
    _partitions: int = 0
    """Partitions of the stage that was added last."""

    @property
    def code(self) -> Code:
        return self.kernel.code

    def stage(self, partitions: int, work: Callable[[Partition], None]) -> None:
        """Have `work` done for each of so many partitions, after the stage before and before the next one.

        Raises `ValueError` for more than `max_stages`: they would use the counters of the next kernel.
        """
        if self._added == self.max_stages:
            raise ValueError(f"a fused kernel of {self.max_stages} stages has no room for another one")
        if self._added:
            self._wait()
        taken, done = (self._counter(self._added, which) for which in range(COUNTERS_PER_STAGE))
        self._added += 1
        self._partitions = partitions

        def is_left(values: list[Value]) -> tuple[Value, Sequence[Value]]:
            return values[0] < partitions, values

        def do(values: list[Value]) -> Sequence[Value]:
            work(Partition(values[0], partitions))
            self.counters.fetch_add(1, [done])
            return [self.counters.fetch_add(1, [taken])]

        self.code.loop_while([self.counters.fetch_add(1, [taken])], is_left, do)

    def function(self) -> str:
        """Return the kernel's text, when all stages are added."""
        for _ in range(self._added - 1):
            self.code.end_when()
        return self.kernel.function()

    def _counter(self, stage: int, which: int) -> Value:
        """Return the element of `counters` where one of the stage's counters is."""
        first = self.number * (self.max_stages * COUNTERS_PER_STAGE * COUNTER_STRIDE)
        return first + (stage * COUNTERS_PER_STAGE + which) * COUNTER_STRIDE

    def _wait(self) -> None:
        """Wait until the partitions of the last stage are done. What is appended next runs only on threads that have
        seen it."""
        code, partitions = self.code, self._partitions
        done = self._counter(self._added - 1, 1)

        def is_early(values: list[Value]) -> tuple[Value, Sequence[Value]]:
            (spins,) = values
            count = self.counters.fetch_add(0, [done])
            return (count < partitions) & (spins < MAX_SPINS), [spins, count]

        def spin(values: list[Value]) -> Sequence[Value]:
            if self.pause:
                code.intrinsic_statement(self.pause, *PAUSE_OPERANDS.get(self.pause, ()))
            return [values[0] + 1]

        _, count = code.loop_while([code.index(0)], is_early, spin)
        code.begin_when(count >= partitions)
