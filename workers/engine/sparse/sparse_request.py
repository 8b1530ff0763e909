"""Sparse prefill of a prompt, as a request to the engine has it."""

from dataclasses import dataclass

from workers.engine.sparse.kept_rows import Ranges


@dataclass(frozen=True, slots=True)
class SparsePrompt:
    """A prompt of which only a part is computed."""

    keep: float = 1.0
    """The part of its chunks that are kept."""
    forced: Ranges = ()
    """The ranges that are kept in any case."""
    kept: Ranges = ()
    """The ranges that an earlier run has kept; empty if they are still to be chosen."""
