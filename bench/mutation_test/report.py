"""The result of a mutation test as text."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.measurement.markdown import markdown
from bench.mutation_test.verdict import Outcome, Verdict

COLUMNS = ("module", "mutants", "noticed", "timed out", "equivalent", "survived")


def noticed_share(verdicts: Sequence[Verdict]) -> float:
    """Return the share of mutants that tests noticed, in percent, of those that are not equivalent. A test that does
    not end has noticed the mutant."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    judged = len(verdicts) - counts[Outcome.EQUIVALENT]
    return 100 * (counts[Outcome.NOTICED] + counts[Outcome.TIMED_OUT]) / judged if judged else 100.0


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the counts of each module, and of all together."""
    modules = sorted({verdict.mutant.module for verdict in verdicts})
    rows = [_row(module, [verdict for verdict in verdicts if verdict.mutant.module == module]) for module in modules]
    return markdown(COLUMNS, [*rows, _row("all", verdicts)])


def survivors(verdicts: Sequence[Verdict], sources: Mapping[str, bytes]) -> str:
    """Return the mutants that no test noticed, as diffs, and the equivalent ones with their reasons.

    `sources` has the source of each module.
    """
    parts = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        source = sources[verdict.mutant.module]
        if verdict.outcome is Outcome.SURVIVED:
            parts.append(f"survived ({verdict.mutant.operator}):\n{verdict.mutant.diff(source)}")
        elif verdict.outcome is Outcome.EQUIVALENT:
            parts.append(f"equivalent, {verdict.reason}:\n{verdict.mutant.diff(source)}")
    return "\n\n".join(parts)


def _row(name: str, verdicts: Sequence[Verdict]) -> list[str]:
    counts = Counter(verdict.outcome for verdict in verdicts)
    return [name, str(len(verdicts)), *(str(counts[outcome]) for outcome in Outcome)]
