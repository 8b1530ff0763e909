"""Tables in Markdown."""

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; all columns but the first are figures."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        figures = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join([cells[0].ljust(widths[0]), *figures])} |"

    rule = [("-" * widths[0])] + ["-" * (width - 1) + ":" for width in widths[1:]]
    return "\n".join([line(header), line(rule), *map(line, rows)])
