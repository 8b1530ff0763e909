"""The result of a mutation test as text."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.measurement.markdown import markdown
from bench.mutation_test.trial import MutantTrial, Outcome

COLUMNS = ("module", "mutants", "noticed", "timed out", "equivalent", "survived")


def noticed_share(trials: Sequence[MutantTrial]) -> float:
    """Return the share of mutants that tests noticed, in percent, of those that are not equivalent. A test that does
    not end has noticed the mutant."""
    counts = Counter(trial.outcome for trial in trials)
    judged = len(trials) - counts[Outcome.EQUIVALENT]
    return 100 * (counts[Outcome.NOTICED] + counts[Outcome.TIMED_OUT]) / judged if judged else 100.0


def table(trials: Sequence[MutantTrial]) -> str:
    """Return the counts of each module, and of all together."""
    modules = sorted({trial.mutant.module for trial in trials})
    rows = [_row(module, [trial for trial in trials if trial.mutant.module == module]) for module in modules]
    return markdown(COLUMNS, [*rows, _row("all", trials)])


def survivors(trials: Sequence[MutantTrial], sources: Mapping[str, bytes]) -> str:
    """Return the mutants that no test noticed, as diffs, and the equivalent ones with their reasons.

    `sources` has the source of each module.
    """
    parts = []
    for trial in sorted(trials, key=lambda trial: trial.mutant):
        source = sources[trial.mutant.module]
        if trial.outcome is Outcome.SURVIVED:
            parts.append(f"survived ({trial.mutant.operator}):\n{trial.mutant.diff(source)}")
        elif trial.outcome is Outcome.EQUIVALENT:
            parts.append(f"equivalent, {trial.reason}:\n{trial.mutant.diff(source)}")
    return "\n\n".join(parts)


def _row(name: str, trials: Sequence[MutantTrial]) -> list[str]:
    counts = Counter(trial.outcome for trial in trials)
    return [name, str(len(trials)), *(str(counts[outcome]) for outcome in Outcome)]
