"""Mutants that no test can notice, each with the reason."""

from dataclasses import dataclass

from bench.mutation_test.mutant import Mutant


@dataclass(frozen=True)
class Equivalent:
    """A change after which the module behaves the same."""

    module: str
    where: str
    before: str
    """The changed lines, as `Mutant.change` returns them."""
    after: str
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = ()


def reason_of(mutant: Mutant, source: bytes) -> str:
    """Return why a mutant of this source is equivalent; empty if it is not known to be."""
    before, after = mutant.change(source)
    for known in EQUIVALENT:
        if (known.module, known.where, known.before, known.after) == (mutant.module, mutant.where, before, after):
            return known.reason
    return ""
