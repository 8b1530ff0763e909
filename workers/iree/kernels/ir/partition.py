"""How the work of a kernel is shared out among threads."""

from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code

SHARES = 7
"""Workgroups for each thread. A thread takes one at a time where there are fewer than eight for each, otherwise eight
(IREE's `IREE_TASK_DISPATCH_MAX_TILES_PER_SHARD_RESERVATION`): of 28 workgroups, one of two threads would do 16."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which of how many shares of the work is done."""

    number: str
    count: int


def workgroups(parts: int, threads: int) -> int:
    """How many workgroups share `parts` of the work."""
    return min(parts, SHARES * threads)


def share_of(code: Code, share: Share, count: str) -> tuple[str, str]:
    """The first of `count` things that a share is of, and the end: shares with one more come first."""

    def first(end: int) -> str:
        before = code.let(f"arith.muli {code.add(share.number, end)}, {count} : index")
        return code.div(code.add(before, share.count - 1), share.count)

    return first(0), first(1)


def share_end(code: Code, number: str, count: int, parts: int) -> str:
    """Where share `number` of `count` begins, and the one before it ends: each is smaller than the one before.

    The first has nearly two of `count` shares of the work, and the last next to none, so that threads that began at
    different times, or run at different speeds, end together (trapezoid self-scheduling,
    https://doi.org/10.1109/71.205655).
    """
    left = code.let(f"arith.subi {code.index(count)}, {number} : index")
    rest = code.div(code.mul(code.let(f"arith.muli {left}, {left} : index"), parts), count * count)
    return code.let(f"arith.subi {code.index(parts)}, {rest} : index")


def share_after(code: Code, share: Share) -> str:
    """The share that whoever has this one most likely takes next, as threads take turns; the last one where there are
    no more."""
    return code.least(code.add(share.number, max(1, share.count // SHARES)), code.index(share.count - 1))
