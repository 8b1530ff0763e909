"""Several kernels as one: its threads go from phase to phase by themselves, where a dispatch each would part them.

The shares of a phase are taken by whoever is free, by counting; the next phase begins when all of them are done. A
share is only ever waited for while a thread works on it: a single thread does everything, and any number of them may
come late, or not at all. One that has waited for long leaves the rest to the others, for the core of the one that it
waits for has other things to do. The last one never waits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.ir.partition import Share

COUNTS = 2
"""Counters of a phase: shares that are taken, and those that are done."""
APART = LANES
"""int32 from one counter to the next: each has a line of the cache to itself."""
PATIENCE = 1 << 12
"""Looks at a counter before a thread leaves: some tenths of a millisecond, more than threads wait for each other
at the end of a phase, and less than a core is away that the system has given to something else."""


def counters(chains: int, phases: int) -> int:
    """int32 that chains of one graph count in; they begin as zeros."""
    return chains * phases * COUNTS * APART


@dataclass(slots=True)
class Chain:
    """Phases of one kernel, each to be added when those before it are."""

    kernel: Kernel
    phases: int
    """How many there will be at most."""
    counts: Value
    """int32 [`counters`], changed in place."""
    number: str
    """An index: which of the chains that share the counters this is."""
    pause: str
    """The intrinsic by which a core says that it only waits; empty where there is none."""
    _added: int = 0
    _of_last: int = 0
    """Shares of the phase that was added last."""

    @property
    def code(self) -> Code:
        return self.kernel.code

    def phase(self, shares: int, work: Callable[[Share], None]) -> None:
        """Have `work` done for each of so many shares, after the phase before and before the next one.

        Raises `ValueError` for more phases than there are counters for: it would count in those of the next chain.
        """
        if self._added == self.phases:
            raise ValueError(f"a chain of {self.phases} phases has no room for another one")
        if self._added:
            self._wait()
        at = self._added
        self._added += 1
        self._of_last = shares
        taken, done = (self._counter(at, which) for which in range(COUNTS))
        code, limit = self.code, self.code.index(shares)
        share = code.name()
        first = self._count(taken, 1)
        again, this = code.name(), code.name()
        code.do(f"{again} = scf.while ({this} = {first}) : (index) -> index {{")
        more = code.let(f"arith.cmpi ult, {this}, {limit} : index")
        code.do(f"scf.condition({more}) {this} : index\n}} do {{\n^bb0({share}: index):")
        work(Share(share, shares))
        self._count(done, 1)
        following = self._count(taken, 1)
        code.do(f"scf.yield {following} : index\n}}")

    def end(self) -> str:
        """The kernel's text."""
        for _ in range(self._added - 1):
            self.code.do("}")
        return self.kernel.function()

    def _counter(self, phase: int, which: int) -> str:
        first = self.code.mul(self.number, self.phases * COUNTS * APART)
        return self.code.add(first, (phase * COUNTS + which) * APART)

    def _count(self, at: str, more: int) -> str:
        """Add to a counter and return what it was, an index: all that was written before is seen by who sees it."""
        code = self.code
        number = code.constant(f"{more} : i32")
        before = code.let(
            f"memref.atomic_rmw addi {number}, {self.counts.name}[{at}] : (i32, {self.counts.type}) -> i32"
        )
        return code.let(f"arith.index_cast {before} : i32 to index")

    def _wait(self) -> None:
        """Until the last phase's shares are done; what comes after is done only by those that have seen it."""
        code, limit = self.code, self.code.index(self._of_last)
        done = self._counter(self._added - 1, 1)
        turn, seen, end = code.name(), code.name(), code.name()
        patience = code.index(PATIENCE)
        code.do(f"{end}:2 = scf.while ({turn} = {code.index(0)}) : (index) -> (index, index) {{")
        count = self._count(done, 0)
        short = code.let(f"arith.cmpi ult, {count}, {limit} : index")
        patient = code.let(f"arith.cmpi ult, {turn}, {patience} : index")
        again = code.let(f"arith.andi {short}, {patient} : i1")
        passed = code.name()
        code.do(
            f"scf.condition({again}) {turn}, {count} : index, index\n}} do {{\n^bb0({passed}: index, {seen}: index):"
        )
        if self.pause:
            code.do(f'llvm.call_intrinsic "{self.pause}"() : () -> ()')
        code.do(f"scf.yield {code.add(passed, 1)} : index\n}}")
        whole = code.let(f"arith.cmpi uge, {end}#1, {limit} : index")
        code.do(f"scf.if {whole} {{")
