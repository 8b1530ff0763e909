"""The table that `baton chaos` prints."""

from rich.console import Console
from rich.table import Table

from cli.chaos.rounds import percentile
from cli.chaos.trial import Trial


def print_report(trial: Trial, console: Console) -> None:
    """Print a line for each fault, and why its first failed stream failed."""
    # These fit into 80 columns, if the headings may take several lines.
    columns = ("fault", "rounds", "streams", "failed", "dup.", "altered", "gaps", "gap p50 ms", "gap p99 ms")
    table = Table(*columns, "no fault gap ms", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[0].min_width = max(map(len, trial.impacts), default=0)
    for fault, impact in trial.impacts.items():
        counts = trial.rounds[fault], impact.streams, impact.failed, impact.duplicated, impact.altered
        gaps = (percentile(impact.gaps_s, 0.5), percentile(impact.gaps_s, 0.99), impact.undisturbed_s)
        shown = ["-" if gap is None else f"{1e3 * gap:.0f}" for gap in gaps]
        table.add_row(fault, *map(str, counts), str(len(impact.gaps_s)), *shown)
    console.print(table)
    for fault, impact in trial.impacts.items():
        if impact.problem:
            console.print(f"{fault}: {impact.problem}", markup=False)
